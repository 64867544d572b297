package lockadmin

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/server"
)

const brokenAtOnce = 1000

// BreakSession ends every lease and every ticket of the client with this session, as Break ends one lease, and returns
// each of them, in byte order of the locks. It is for a client that is gone. One that is alive loses its leases, and
// its waiting calls queue again, at the end; Sessions tells which it is.
//
// Up to a thousand locks are one transaction: all of it is done, or nothing. Of more locks an error ends it after the
// last thousand; then the result is what was broken, and the same call again goes on. The database user needs the role
// pglock_admin. WithToken does not apply.
//
// Errors: ErrNotHeld if the session has neither a lease nor a ticket; pglock.ErrInvalid, ErrPermission, ErrReadOnly.
func (a *Admin) BreakSession(ctx context.Context, id, reason string, opts ...BreakOption) ([]Broken, error) {
	if err := checkSession("session", id); err != nil {
		return nil, err
	}
	r, err := newBreak(reason, opts)
	if err != nil {
		return nil, err
	}
	if r.token != nil {
		return nil, refuse.Invalid("WithToken", "given", "not be given to BreakSession")
	}
	id = strings.ToLower(id)
	var all []Broken
	for after := ""; ; {
		var news news
		names := 0
		rows, err := server.List(ctx, a.db, a.db.Queries.BreakSession, []any{id, reason, r.actor, brokenAtOnce, after},
			func(rows pgx.Rows) (Broken, error) {
				b, granted, watched, err := scanBroken(rows)
				if b.Name != after {
					names, after = names+1, b.Name
				}
				news.add(b.Name, granted, watched)
				return b, err
			})
		if err != nil {
			return all, failed(ctx, err, "break session %s", id)
		}
		a.tell(ctx, news)
		for _, b := range rows {
			if b.Token != 0 || b.Ticket != 0 {
				all = append(all, b)
			}
		}
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
