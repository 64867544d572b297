package lockadmin

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// MaxReasonBytes limits the reason for a break.
const MaxReasonBytes = 1024

// announcing limits how long Break takes to notify the new holder, who finds out anyway within about a second.
const announcing = time.Second

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

// BreakOptions say which lease a break ends, and for whom. All may be left out.
type BreakOptions struct {
	// Token breaks only the lease with this token, and so never one that was granted meanwhile. nil: the lock's only
	// lease; a lock with several holders needs it.
	Token *pglock.Token
	// Actor names the person for the history, in at most pglock.MaxHolderBytes bytes. "": "host/program[pid]".
	Actor string
}

// Break ends somebody else's lease: its next renewal, release and fenced write fail, and the lock goes to the next in
// the queue, if there is one. Break draws a new token and writes an event of the history with the reason. The database
// user needs the role pglock_admin.
//
// Errors: ErrNotHeld if there is nothing to break, or it has another token; pglock.ErrInvalid, ErrPermission,
// ErrReadOnly.
func (a *Admin) Break(ctx context.Context, name, reason string, o BreakOptions) (Broken, error) {
	if err := cmp.Or(refuse.Text("name", name, pglock.MaxNameBytes), o.check(reason)); err != nil {
		return Broken{}, err
	}
	var granted []int
	var watched bool
	rows, err := server.Rows(ctx, a.db, a.db.Queries.BreakLock, []any{name, reason, o.Actor, (*int64)(o.Token)},
		func(rows pgx.Rows) (b Broken, err error) {
			b.Name = name
			err = rows.Scan(&b.Holder, &b.Token, &b.NewToken, moment(&b.ExpiresAt), &granted, null(&watched))
			return b, err
		})
	broken, err := only(rows, err)
	if err != nil {
		return Broken{}, failed(ctx, err, "break lock %q", name)
	}
	var news protocol.Announcement
	news.Add(name, granted, watched)
	a.tell(ctx, news)
	return broken, nil
}

const brokenAtOnce = 1000

// BreakSession ends every lease and every ticket of the client with this session, as Break ends one lease, and returns
// each of them, in byte order of the locks. It is for a client that is gone. One that is alive loses its leases, and
// its waiting calls queue again, at the end; Sessions tells which it is.
//
// Up to a thousand locks are one transaction: all of it is done, or nothing. Of more locks an error ends it after the
// last thousand; then the result is what was broken, and the same call again goes on. If the answer was lost, up to a
// thousand locks more may be broken. The database user needs the role pglock_admin. BreakOptions.Token must be nil.
//
// Errors: ErrNotHeld if the session has neither a lease nor a ticket; pglock.ErrInvalid, ErrPermission, ErrReadOnly.
func (a *Admin) BreakSession(ctx context.Context, id, reason string, o BreakOptions) ([]Broken, error) {
	if err := cmp.Or(checkSession("session", id), o.check(reason),
		refuse.If(o.Token != nil, "token", "given", "not be given to BreakSession")); err != nil {
		return nil, err
	}
	id = strings.ToLower(id)
	var all []Broken
	for after := ""; ; {
		type row struct {
			Broken
			granted []int
			watched bool
		}
		rows, err := server.List(ctx, a.db, a.db.Queries.BreakSession, []any{id, reason, o.Actor, brokenAtOnce, after},
			func(rows pgx.Rows) (r row, err error) {
				r.Broken, r.granted, r.watched, err = scanBroken(rows)
				return r, err
			})
		if err != nil {
			return all, failed(ctx, err, "break session %s", id)
		}
		var news protocol.Announcement
		names := 0
		for _, r := range rows {
			if r.Name != after {
				names, after = names+1, r.Name
			}
			news.Add(r.Name, r.granted, r.watched)
			if r.Token != 0 || r.Ticket != 0 {
				all = append(all, r.Broken)
			}
		}
		a.tell(ctx, news)
		if names < brokenAtOnce {
			break
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: session %s has neither a lease nor a ticket", ErrNotHeld, id)
	}
	return all, nil
}

func scanBroken(rows pgx.Rows) (b Broken, granted []int, watched bool, err error) {
	err = rows.Scan(&b.Name, null(&b.Slot), null(&b.Ticket), null(&b.Holder), null(&b.Token), null(&b.NewToken),
		moment(&b.ExpiresAt), &granted, null(&watched))
	return b, granted, watched, err
}

func (o *BreakOptions) check(reason string) error {
	o.Actor = cmp.Or(o.Actor, argument.Process(pglock.MaxHolderBytes))
	if o.Token != nil && *o.Token <= 0 {
		return refuse.Invalid("token", fmt.Sprint(int64(*o.Token)), "be greater than 0")
	}
	return cmp.Or(refuse.Text("actor", o.Actor, pglock.MaxHolderBytes),
		refuse.Text("reason", reason, MaxReasonBytes),
		refuse.If(strings.TrimSpace(reason) == "", "reason", argument.Shorten(reason),
			fmt.Sprintf("have 1 to %d bytes that are not all blank", MaxReasonBytes)))
}

// tell notifies the new holders, and the watchers.
func (a *Admin) tell(ctx context.Context, news protocol.Announcement) {
	ctx, cancel := context.WithTimeout(ctx, announcing)
	defer cancel()
	news.Send(ctx, func(ctx context.Context, names []string, slots []*int) error {
		return a.db.Query(ctx, a.db.Queries.Announce(names, slots, new(int64)))
	})
}
