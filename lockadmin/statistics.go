package lockadmin

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/server"
)

// MaxTop is the greatest number of single locks in Statistics.
const MaxTop = 1000

// Statistics has the numbers that people monitor, for all clients of the schema at one moment.
type Statistics struct {
	All    LockStatistics
	Top    []LockStatistics // the locks that wait or are held for longest, in byte order of their names
	Others LockStatistics   // all that are not in Top, together; zero if there is no Top

	Locks    int64 // how many locks are held
	Sessions int64 // clients that wait, or have lately waited, and are alive
	// clients that hold leases and have given no sign of life for 15 s: no renewal, look or mark_connection
	DeadHolders int64
	Tokens      int64         // how many tokens were drawn: at least one for each grant and for each break
	Blocked     int64         // transactions that use pglock's tables and wait for other transactions
	BlockedFor  time.Duration // how long the first of them has waited
	Blockers    int64         // the processes that they wait for; all prepared transactions count as one
	// the age of the oldest transaction of Blockers, 0 if the owner of the schema may not see it; or of one that was
	// prepared, since then, and keeps anything of pglock locked, also if nobody waits for it
	BlockingFor       time.Duration
	NotificationQueue float64 // how full it is, from 0 to 1
}

// LockStatistics has the numbers of one lock, or of several together.
type LockStatistics struct {
	Name        string        // "" of several
	Leases      int64         // that are held
	Ending      int64         // leases with less than a third of their TTL left: their holder does not renew them
	HeldFor     time.Duration // the age of the oldest lease
	Waiters     int64         // live requests in the queue
	DeadWaiters int64         // requests of sessions that give no sign of life: the queue will pass over them
	WaitingFor  time.Duration // how long the first live request has waited
}

// Statistics counts what there is at this moment, and what there is of up to top single locks, from 0 to MaxTop. It
// reads the whole table of locks, also free ones: some tenths of a second for a million. First it counts what is
// blocked, for which it reads no table of pglock. An error comes with the numbers that are known until then: while
// somebody has locked a whole table, with those.
//
// Errors are those of Locks.
func (a *Admin) Statistics(ctx context.Context, top int) (Statistics, error) {
	if err := refuse.Number("top", top, 0, MaxTop); err != nil {
		return Statistics{}, err
	}
	type number struct {
		item  string
		lock  *string
		value float64
	}
	scan := func(rows pgx.Rows) (n number, err error) {
		err = rows.Scan(&n.item, &n.lock, &n.value)
		return n, err
	}
	numbers, err := server.Rows(ctx, a.db, a.db.Queries.Blocked, nil, scan)
	if err == nil {
		var more []number
		more, err = server.Rows(ctx, a.db, a.db.Queries.Statistics, []any{top}, scan)
		numbers = append(numbers, more...)
	}
	var s Statistics
	single := make(map[string]*LockStatistics)
	for _, n := range numbers {
		of := &s.All
		if n.lock != nil {
			if of = single[*n.lock]; of == nil {
				of = &LockStatistics{Name: *n.lock}
				single[*n.lock] = of
			}
		}
		s.set(of, n.item, n.value)
	}
	if others := single[""]; others != nil {
		s.Others = *others
		delete(single, "")
	}
	for _, name := range slices.Sorted(maps.Keys(single)) {
		s.Top = append(s.Top, *single[name])
	}
	return s, failed(ctx, err, "count")
}

// set notes one number of all locks, or of some.
func (s *Statistics) set(of *LockStatistics, item string, value float64) {
	numbers := map[string]any{"leases": &of.Leases, "ending": &of.Ending, "waiters": &of.Waiters,
		"dead_waiters": &of.DeadWaiters, "held_seconds": &of.HeldFor, "waiting_seconds": &of.WaitingFor,
		"sessions": &s.Sessions, "dead_holders": &s.DeadHolders, "tokens": &s.Tokens, "blocked": &s.Blocked,
		"blockers": &s.Blockers, "blocked_seconds": &s.BlockedFor, "blocking_seconds": &s.BlockingFor,
		"notification_queue": &s.NotificationQueue}
	if of == &s.All {
		numbers["locks"] = &s.Locks
	}
	switch to := numbers[item].(type) {
	case *int64:
		*to = int64(value)
	case *float64:
		*to = value
	case *time.Duration:
		*to = time.Duration(value * float64(time.Second))
	}
}

// RecentHistory tells of which takeovers, breaks, overlaps, bypasses and new epochs somebody should know: the ID and
// the Kind of those with an ID greater than after, in order of their IDs, and the greatest ID that was drawn for any
// entry, on a standby of any that is visible; at most 100,000. Any pglock_user may ask. Entries become visible when
// their transactions commit. So one with a lower ID may follow one with a greater ID, and somebody who counts asks
// again with an after of some time ago.
//
// Errors are those of Locks.
func (a *Admin) RecentHistory(ctx context.Context, after int64) (entries []HistoryEntry, greatest int64, err error) {
	rows, err := server.Rows(ctx, a.db, a.db.Queries.RecentEvents, []any{after},
		func(rows pgx.Rows) (e HistoryEntry, err error) {
			err = rows.Scan(&e.ID, null(&e.Kind))
			return e, err
		})
	if err != nil {
		return nil, 0, failed(ctx, err, "list the recent history")
	}
	for _, e := range rows {
		if e.Kind == "" {
			greatest = e.ID
			continue
		}
		entries = append(entries, e)
	}
	return entries, greatest, nil
}

// Diagnose is the function Diagnose for the database and the schema of this Admin.
func (a *Admin) Diagnose(ctx context.Context) ([]Finding, error) {
	return Diagnose(ctx, a.pool, WithSchema(a.schema))
}

// Ping asks the server whether the schema exists and fits, as New does, and whether it takes writes. Errors are those
// of New, and pglock.ErrReadOnly.
func (a *Admin) Ping(ctx context.Context) error {
	_, err := start(ctx, a.db, a.schema)
	return failure.At(ctx, err, "lockadmin: look at the schema")
}
