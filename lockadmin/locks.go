package lockadmin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/refuse"
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
	if err := refuse.Text("name", name, pglock.MaxNameBytes); err != nil {
		return nil, err
	}
	infos, err := server.Rows(ctx, a.db, a.db.Queries.Get, []any{name}, scanLock)
	if err != nil {
		return nil, failed(ctx, err, "get lock %q", name)
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
		v := int64(t)
		r.token = &v
		return refuse.If(t <= 0, "token", fmt.Sprint(v), "be greater than 0")
	}
}

// WithActor names the person for the history, 1 to pglock.MaxHolderBytes bytes. Defaults to "host/program[pid]".
func WithActor(who string) BreakOption {
	return func(r *breakRequest) error {
		r.actor = who
		return refuse.Text("actor", who, pglock.MaxHolderBytes)
	}
}

// Break ends somebody else's lease: its next renewal, release and fenced write fail, and the lock goes to the next in
// the queue, if there is one. Break draws a new token and writes an event of the history with the reason. The database
// user needs the role pglock_admin.
//
// Errors: ErrNotHeld if there is nothing to break, or it has another token; pglock.ErrInvalid, ErrPermission,
// ErrReadOnly.
func (a *Admin) Break(ctx context.Context, name, reason string, opts ...BreakOption) (Broken, error) {
	if err := refuse.Text("name", name, pglock.MaxNameBytes); err != nil {
		return Broken{}, err
	}
	r, err := newBreak(reason, opts)
	if err != nil {
		return Broken{}, err
	}
	var granted []int
	var watched bool
	rows, err := server.Rows(ctx, a.db, a.db.Queries.BreakLock, []any{name, reason, r.actor, r.token},
		func(rows pgx.Rows) (b Broken, err error) {
			b.Name = name
			err = rows.Scan(&b.Holder, &b.Token, &b.NewToken, moment(&b.ExpiresAt), &granted, null(&watched))
			return b, err
		})
	broken, err := only(rows, err)
	if err != nil {
		return Broken{}, failed(ctx, err, "break lock %q", name)
	}
	var news news
	news.add(name, granted, watched)
	a.tell(ctx, news)
	return broken, nil
}

// newBreak reads the reason and the options of a break.
func newBreak(reason string, opts []BreakOption) (breakRequest, error) {
	r := breakRequest{actor: argument.Process(pglock.MaxHolderBytes)}
	if err := refuse.Text("reason", reason, MaxReasonBytes); err != nil {
		return r, err
	}
	if strings.TrimSpace(reason) == "" {
		return r, refuse.Invalid("reason", argument.Shorten(reason),
			fmt.Sprintf("have 1 to %d bytes that are not all blank", MaxReasonBytes))
	}
	return r, refuse.Options(&r, opts)
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
