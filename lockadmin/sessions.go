package lockadmin

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Session is a client of package pglock, as the server knows it: a client that holds or waits, whose heartbeat's
// connection is open, or that gave a sign of life within a minute. So a program that has ended and that had let go of
// everything is soon none. Times are the server's, in UTC.
type Session struct {
	ID     string `json:"id"`
	Holder string `json:"holder"` // the client's label; of one that has only ever held, a lease's
	// of its library, "(devel)" where the build did not tell; "": not known yet
	Version string `json:"version,omitempty"`
	Leases  int    `json:"leases"`  // that it holds
	Tickets int    `json:"tickets"` // its places in queues

	Life          Life          `json:"life"`
	LastHeartbeat time.Time     `json:"last_heartbeat,omitzero"` // its last sign of life, or the last grant of a lease
	Silent        time.Duration `json:"-"`                       // since LastHeartbeat, at the answer

	// The server's process of its heartbeat, as in Backend. It has none before the first heartbeat, and behind a
	// pooler: then PID is 0. The server shows Client and State to members of User's role and of pg_read_all_stats.
	PID         int    `json:"pid,omitempty"`
	User        string `json:"user,omitempty"`
	Application string `json:"application_name,omitempty"`
	Client      string `json:"client_addr,omitempty"` // "" for a Unix socket
	State       string `json:"state,omitempty"`
}

// MarshalJSON writes durations in milliseconds.
func (s Session) MarshalJSON() ([]byte, error) {
	type plain Session
	return json.Marshal(struct {
		plain
		Silent int64 `json:"silent_ms"`
	}{plain(s), s.Silent.Milliseconds()})
}

// Sessions yields the clients in the order of their labels. No index leads from a session to its leases, so each page
// reads all locks and all waiters once; the server ends a statement when ctx's time is up, or after ten seconds if ctx
// has no deadline. Errors are those of Locks.
func (a *Admin) Sessions(ctx context.Context, q SessionsQuery) iter.Seq2[Session, error] {
	l := listing{match: q.Match, holder: q.Holder, session: q.Session, older: q.Older, order: q.Order, after: q.After,
		limit: q.Limit, page: q.PageSize}
	err := l.check(OrderName, OrderAge, OrderWaiting, OrderLeases)
	if err == nil && l.after != "" {
		err = checkSession("after", l.after)
	}
	if err == nil && q.AfterHolder != "" {
		err = cmp.Or(refuse.Text("after holder", q.AfterHolder, pglock.MaxHolderBytes),
			refuse.If(l.after == "", "after holder", argument.Shorten(q.AfterHolder), "be given with after"))
	}
	read := pageOf[Session]{"list sessions", a.db.Queries.Sessions, scanSession}
	return pages(ctx, a.db, l, err, read, func(last Session, size int) []any {
		return []any{size, l.match, l.holder, orNull(l.session), l.since(), string(l.order),
			orNull(cmp.Or(last.ID, l.after)), orNull(cmp.Or(last.Holder, q.AfterHolder))}
	})
}

func scanSession(rows pgx.Rows) (s Session, err error) {
	err = rows.Scan(&s.ID, &s.Holder, null(&s.Version), &s.Life, moment(&s.LastHeartbeat), micros(&s.Silent),
		&s.Leases, &s.Tickets, null(&s.PID), null(&s.User), null(&s.Application), null(&s.Client), null(&s.State))
	return s, err
}
