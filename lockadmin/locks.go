package lockadmin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// MaxReasonBytes limits the reason for a break.
const MaxReasonBytes = 1024

// announcing limits how long Break takes to notify the new holder, who finds out anyway within about a second.
const announcing = time.Second

// Get returns the state of one lock, held or free; if it has several holders, of the one with the lowest slot.
// ErrNotFound if its name was never used. Other errors are those of Locks.
func (a *Admin) Get(ctx context.Context, name string) (pglock.LockInfo, error) {
	infos, err := a.Holders(ctx, name)
	if err != nil {
		return pglock.LockInfo{}, err
	}
	return infos[0], nil
}

// Holders returns every lease of one lock at one moment, by slot; for a free lock its last lease, with Held false.
// ErrNotFound if its name was never used. Other errors are those of Locks.
func (a *Admin) Holders(ctx context.Context, name string) ([]pglock.LockInfo, error) {
	if err := checkText("name", name, pglock.MaxNameBytes); err != nil {
		return nil, err
	}
	infos, err := server.Rows(ctx, a.db, a.db.Queries.Get, []any{name}, scanLock)
	if err != nil {
		return nil, failed(ctx, fmt.Sprintf("get lock %q", name), err)
	}
	if len(infos) == 0 {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	return infos, nil
}

// Broken is the lease that Break ended; of BreakSession also a ticket, which has no tokens.
type Broken struct {
	Name      string       `json:"name"`
	Slot      int          `json:"slot,omitempty"` // only of BreakSession
	Holder    string       `json:"holder"`
	Token     pglock.Token `json:"token,omitempty"`
	NewToken  pglock.Token `json:"new_token,omitempty"` // it fences the old holder off
	ExpiresAt time.Time    `json:"expires_at,omitzero"`
	// of BreakSession: the place in the queue that it ended; 0 for a lease
	Ticket int64 `json:"ticket,omitempty"`
}

// BreakOption configures one Break.
type BreakOption func(*breakRequest) error

type breakRequest struct {
	actor string
	token *int64
}

// WithToken breaks only the lease with this token, and so never one that was granted meanwhile. Defaults to the
// lock's only lease; a lock with several holders needs it.
func WithToken(t pglock.Token) BreakOption {
	return func(r *breakRequest) error {
		if t <= 0 {
			return &pglock.ArgumentError{Field: "token", Value: fmt.Sprint(int64(t)), Rule: "be greater than 0"}
		}
		v := int64(t)
		r.token = &v
		return nil
	}
}

// WithActor names the person for the history, 1 to pglock.MaxHolderBytes bytes. Defaults to "host/program[pid]".
func WithActor(who string) BreakOption {
	return func(r *breakRequest) error {
		r.actor = who
		return checkText("actor", who, pglock.MaxHolderBytes)
	}
}

// Break ends somebody else's lease: its next renewal, release and fenced write fail, and the lock goes to the next in
// the queue, if there is one. Break draws a new token and writes an event of the history with the reason. The database
// user needs the role pglock_admin.
//
// Errors: ErrNotHeld if there is nothing to break, or it has another token; pglock.ErrInvalid, ErrPermission,
// ErrReadOnly.
func (a *Admin) Break(ctx context.Context, name, reason string, opts ...BreakOption) (Broken, error) {
	if err := checkText("name", name, pglock.MaxNameBytes); err != nil {
		return Broken{}, err
	}
	r, err := newBreak(reason, opts)
	if err != nil {
		return Broken{}, err
	}
	var granted []int
	var watched bool
	rows, err := server.Rows(ctx, a.db, a.db.Queries.BreakLock, []any{name, reason, r.actor, r.token},
		func(rows pgx.Rows) (Broken, error) {
			b := Broken{Name: name}
			var expiresAt *int64
			var seen *bool
			err := rows.Scan(&b.Holder, &b.Token, &b.NewToken, &expiresAt, &granted, &seen)
			b.ExpiresAt, watched = protocol.Moment(expiresAt), protocol.OrZero(seen)
			return b, err
		})
	if err == nil && len(rows) != 1 {
		err = fmt.Errorf("the server answered with %d rows", len(rows))
	}
	if err != nil {
		return Broken{}, failed(ctx, fmt.Sprintf("break lock %q", name), err)
	}
	var news news
	news.add(name, granted, watched)
	a.tell(ctx, news)
	return rows[0], nil
}

// newBreak reads the reason and the options of a break.
func newBreak(reason string, opts []BreakOption) (breakRequest, error) {
	r := breakRequest{actor: argument.Process(pglock.MaxHolderBytes)}
	if err := checkText("reason", reason, MaxReasonBytes); err != nil {
		return r, err
	}
	if strings.TrimSpace(reason) == "" {
		return r, &pglock.ArgumentError{Field: "reason", Value: argument.Shorten(reason),
			Rule: fmt.Sprintf("have 1 to %d bytes that are not all blank", MaxReasonBytes)}
	}
	return r, apply(&r, opts)
}

// news is what a break has to tell others: of each lock the slots that it granted; nil of a slot only tells the
// watchers.
type news struct {
	names []string
	slots []*int
}

func (n *news) add(name string, granted []int, watched bool) {
	for _, slot := range granted {
		n.names, n.slots = append(n.names, name), append(n.slots, &slot)
	}
	if len(granted) == 0 && watched {
		n.names, n.slots = append(n.names, name), append(n.slots, nil)
	}
}

// tell notifies the new holders, and the watchers.
func (a *Admin) tell(ctx context.Context, n news) {
	if len(n.names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, announcing)
	defer cancel()
	_ = a.db.Query(ctx, a.db.Queries.Announce(n.names, n.slots, new(int64)))
}
