package lockadmin

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// How much Explain looks at.
const (
	waitersRead  = 1000             // of a queue at once
	waitersMost  = 20 * waitersRead // of a queue whose first ones are all dead
	waitersShown = 5                // at its head
	eventsRead   = 20               // of the history
)

// Explain says why a lock is as it is: who holds it and whether that program is alive, who waits, what stands in the
// way, and what to do next. It reads everything in one transaction on one connection, locks nothing, and waits for no
// row. If somebody has locked a whole table of pglock it stops after two seconds at most, and says who it is; without
// the history it goes on.
//
// Errors are those of Locks. A lock that nobody has used is no error: its State is LockUnknown.
func (a *Admin) Explain(ctx context.Context, name string) (Explanation, error) {
	if err := refuse.Text("name", name, pglock.MaxNameBytes); err != nil {
		return Explanation{}, err
	}
	l, err := a.explained(ctx, name, new(past))
	if protocol.LockedOut(err) {
		err = l.readTables(ctx, a)
	}
	if err != nil {
		return Explanation{}, failed(ctx, err, "explain lock %q", name)
	}
	return l.Explanation, nil
}

// look is what Explain finds.
type look struct {
	Explanation
	schema  string
	names   int         // in use here, of a lock that is unknown
	closed  bool        // the tables cannot be read
	clear   time.Time   // since when nothing above or below is in the way of the first in the queue
	readers int         // that live and wait behind the first in the queue
	tables  []tableLock // who has locked one
	leases  []pglock.LockInfo
	granted int64       // the ticket of the exclusive one
	past    *past       // of all looks of the same call
	history []tableLock // who has locked the history, if the next grant needs it
	wanted  bool        // whoever is to blame for a table does not have its lock yet
}

func (a *Admin) look(name string) *look {
	return &look{schema: a.schema, Explanation: Explanation{Lock: name, Waits: []Wait{}, Holders: []HolderFacts{},
		Processes: []Backend{}, Queue: QueueFacts{First: []Waiter{}}}}
}

// explained looks at one lock, in a transaction of its own: an older snapshot would make renewals look late.
func (a *Admin) explained(ctx context.Context, name string, p *past) (*look, error) {
	l := a.look(name)
	l.past = p
	return l, l.in(ctx, a, func(r *reader) { l.read(r, a) })
}

// readTables reads who has locked a whole table of pglock.
func (l *look) readTables(ctx context.Context, a *Admin) error { return l.in(ctx, a, l.tablesOf) }

// in reads facts in one transaction, and concludes from them.
func (l *look) in(ctx context.Context, a *Admin, read func(*reader)) error {
	err := a.read(ctx, read)
	if err == nil {
		l.conclude()
	}
	return err
}

// unread says that the tables are not read.
func (l *look) unread(r *reader) {
	l.closed, l.State, l.At = true, LockHidden, r.at
	l.Standby = firstOrNil(rows(r, protocol.Replayed, nil, scanStandby))
}

func (l *look) tablesOf(r *reader) {
	l.unread(r)
	l.tables = l.lockers(r, closedToWriters, append(slices.Clone(needed), "subtrees", "spent_grants", "receipts",
		"done_keys")...) // whoever has locked events alone does not close the others
}

func (l *look) read(r *reader, a *Admin) {
	l.At = r.at
	q := a.db.Queries
	l.Standby = firstOrNil(rows(r, protocol.Replayed, nil, scanStandby))
	if l.readTableLocks(r); slices.ContainsFunc(l.tables, tableLock.hides) {
		l.unread(r)
		return
	}
	l.leases = rows(r, q.GetGranted, []any{l.Lock}, l.scanGranted)
	l.Guards = rows(r, q.BrokenGuards, []any{l.Lock}, scanBrokenGuard)
	if len(l.leases) == 0 {
		l.State = LockUnknown
		l.readNeighbours(r, a)
		return
	}
	for _, read := range []func(*reader, *protocol.Queries){
		l.readProcesses, l.readHolders, l.readQueue, l.readTree, l.readHandOvers, l.readWaits, l.readEvents,
		l.readHistoryLocks,
	} {
		if r.err == nil { // else what was found until then is all that is known
			read(r, q)
		}
	}
}

func (l *look) readHolders(r *reader, q *protocol.Queries) {
	l.State = LockFree
	for _, i := range l.leases {
		if f := l.factsOf(i); i.Held {
			l.State = LockHeld
			l.Holders = append(l.Holders, f)
		} else {
			l.Last = &f
		}
	}
	if l.State == LockFree {
		return
	}
	l.Last = nil
	known := livesOf(rows(r, q.HolderLives, livesArgs(l.leases), l.scanHolderLife))
	for i, h := range l.Holders {
		l.Holders[i].HolderLife = known[leaseOf(h.LockInfo)]
	}
}

func (l *look) factsOf(i pglock.LockInfo) HolderFacts {
	f := HolderFacts{LockInfo: i, Renewed: i.SlowestRenewal > 0} // a grant may note two times, microseconds apart
	if i.Held {
		f.HeldFor, f.SinceRenewal = lists.HeldFor(i), max(0, lists.SeenAt(i).Sub(i.RenewedAt))
	}
	for _, b := range l.Processes {
		if b.Use == BackendHeartbeat && b.Slot == i.Slot && b.Token == i.Token {
			f.Heartbeat = b.PID
		}
	}
	return f
}

func (l *look) readProcesses(r *reader, q *protocol.Queries) {
	l.Processes = append(l.Processes, rows(r, q.Backends, []any{l.Lock}, l.scanBackend)...)
	l.sayHidden()
}

// sayHidden says once what the server hides of the processes.
func (l *look) sayHidden() {
	const hidden = "the statements and states of some connections: that takes the role pg_read_all_stats, and " +
		"track_activities"
	if !slices.Contains(l.Unseen, hidden) &&
		slices.ContainsFunc(l.Processes, func(b Backend) bool { return b.Hidden }) {
		l.Unseen = append(l.Unseen, hidden)
	}
}

// using are the processes of some uses, in the order of these.
func (l *look) using(uses ...BackendUse) (found []Backend) {
	for _, use := range uses {
		for _, b := range l.Processes {
			if b.Use == use {
				found = append(found, b)
			}
		}
	}
	return found
}

// readWaits reads what the holders wait for.
func (l *look) readWaits(r *reader, q *protocol.Queries) {
	l.Waits = rows(r, q.Waits, []any{l.Lock}, l.scanWait)
	l.Circle = circle(l.Lock, l.Waits)
}

func (l *look) readQueue(r *reader, q *protocol.Queries) {
	waiting := l.leases[0].Waiting
	l.Queue.Waiting = waiting
	if waiting == 0 {
		return
	}
	var last Waiter
	for l.nobodyYet(r) {
		page := rows(r, q.Waiters, []any{l.Lock, waitersRead, last.Lock, last.Ticket, last.Place, "", "", "", nil, "",
			nil, "name"}, l.scanWaiter)
		l.count(page)
		if len(page) < waitersRead {
			break
		}
		last = page[len(page)-1]
	}
	l.Queue.Waiting = max(waiting, l.Queue.Read)
}

// nobodyYet says that a live waiter may be further back in the queue than what was read.
func (l *look) nobodyYet(r *reader) bool {
	if l.Standby != nil { // it cannot tell who is alive
		return l.Queue.Read == 0
	}
	return r.err == nil && l.Queue.Alive == nil && l.Queue.Read < waitersMost
}

func (l *look) count(page []Waiter) {
	l.Queue.Read += len(page)
	for _, w := range page {
		switch {
		case l.Standby != nil:
		case !w.Alive:
			l.Queue.Dead++
		case l.Queue.Alive == nil:
			l.Queue.Alive = &w
		case w.Mode == pglock.ModeShared:
			l.readers++
		}
		if len(l.Queue.First) < waitersShown {
			l.Queue.First = append(l.Queue.First, w)
		}
	}
}

// readHandOvers reads whether the lock was handed over past the first in the queue: only then a later ticket has been
// granted, and this one still counts.
func (l *look) readHandOvers(r *reader, q *protocol.Queries) {
	first := l.Queue.Alive
	if first == nil {
		return
	}
	if l.Queue.HandedPast = l.granted > first.Ticket; !l.Queue.HandedPast {
		return
	}
	l.ofHistory(r, func(r *reader) { // readEvents says so otherwise
		var n int
		var all bool
		if r.row(q.HandOvers, []any{l.Lock, protocol.Timestamp(first.Since)}, &n, &all); all {
			l.Queue.HandOvers = &n
		}
	})
}

func (l *look) scanGranted(r pgx.Rows) (pglock.LockInfo, error) {
	var ticket int64
	i, err := pglock.ForSiblings(hooks.Key{}).ScanLockInfo(r, &ticket)
	if i.Held && i.Slot == 0 {
		l.granted = ticket
	}
	if i.Held {
		l.reckon(lists.SeenAt(i), &i.LongestWait)
		i.Remaining = max(0, i.ExpiresAt.Sub(l.At))
	}
	return i, err
}

func scanBrokenGuard(r pgx.Rows) (g BrokenGuard, err error) {
	err = r.Scan(&g.Table, &g.Resource, &g.Key, &g.Problem)
	return g, err
}

func (l *look) scanWait(r pgx.Rows) (w Wait, err error) {
	var at time.Time
	err = r.Scan(&w.Holds, &w.Waiter, &w.Session, &w.SameOwner, &w.Ticket, &w.For, micros(&w.Waiting),
		null(&w.Holder), null(&w.HolderSession), null(&w.Token), null(&w.By), micros(&w.HeldFor), &w.AnyOf, moment(&at))
	l.reckon(at, &w.Waiting, &w.HeldFor)
	return w, err
}
