package lockadmin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// How much Explain looks at.
const (
	waitersRead  = 1000            // of a queue
	waitersShown = 5               // at its head
	eventsRead   = 20              // of the history
	patience     = 2 * time.Second // with whoever has locked a whole table
	longestLook  = 10 * time.Second
)

// Explain says why a lock is as it is: who holds it and whether that program is alive, who waits, what stands in the
// way, and what to do next. It reads everything in one transaction on one connection, locks nothing, and waits for no
// row. If somebody has locked a whole table of pglock it stops after two seconds, and says who it is.
//
// Errors are those of Locks. A lock that nobody has used is no error: its State is LockUnknown.
func (a *Admin) Explain(ctx context.Context, name string) (Explanation, error) {
	if err := checkText("name", name, pglock.MaxNameBytes); err != nil {
		return Explanation{}, err
	}
	l := a.look(name)
	err := a.read(ctx, func(r reader) error { return l.read(r, a) })
	if protocol.LockedOut(err) {
		err = l.readTables(ctx, a)
	}
	if err != nil {
		return Explanation{}, failed(ctx, fmt.Sprintf("explain lock %q", name), err)
	}
	l.conclude()
	return l.Explanation, nil
}

// look is what Explain finds.
type look struct {
	Explanation
	name    string
	schema  string
	names   int         // in use here, of a lock that is unknown
	closed  bool        // the tables cannot be read
	clear   time.Time   // since when nothing above or below is in the way of the first in the queue
	readers int         // that live and wait behind the first in the queue
	tables  []tableLock // who keeps them closed

	processes                                           []Backend
	heartbeats, writes, atFence, onRow, atRow, blockers []Backend
}

func (a *Admin) look(name string) *look {
	l := &look{name: name, schema: a.schema,
		Explanation: Explanation{Lock: name, Waits: []Wait{}, Holders: []HolderFacts{}, Processes: []Backend{}}}
	l.Queue.First = []Waiter{}
	return l
}

// readTables reads who has locked a whole table of pglock.
func (l *look) readTables(ctx context.Context, a *Admin) error {
	return a.read(ctx, l.tablesOf)
}

func (l *look) tablesOf(r reader) (err error) {
	l.closed, l.State, l.At = true, LockHidden, r.at
	standby, err := rows(r, protocol.Replayed, nil, scanStandby)
	if err != nil {
		return err
	}
	l.Standby = firstOrNil(standby)
	l.tables, err = rows(r, protocol.TableLocks, []any{l.schema}, scanTableLock)
	slices.SortStableFunc(l.tables, func(a, b tableLock) int { return cmp.Compare(b.transaction, a.transaction) })
	return err
}

// read reads the facts.
func (l *look) read(r reader, a *Admin) error {
	l.At = r.at
	q := a.db.Queries
	standby, err := rows(r, protocol.Replayed, nil, scanStandby)
	if err != nil {
		return err
	}
	l.Standby = firstOrNil(standby)
	infos, err := rows(r, q.Get, []any{l.name}, scanLock)
	if err != nil {
		return err
	}
	if l.Guards, err = rows(r, q.BrokenGuards, []any{l.name}, scanBrokenGuard); err != nil {
		return err
	}
	if len(infos) == 0 {
		l.State = LockUnknown
		return l.readNeighbours(r, a)
	}
	if l.processes, err = rows(r, q.Backends, []any{l.name}, scanBackend); err != nil {
		return err
	}
	l.sort()
	l.State = LockFree
	for _, i := range infos {
		if f := l.factsOf(i); i.Held {
			l.State = LockHeld
			l.Holders = append(l.Holders, f)
		} else {
			l.Last = &f
		}
	}
	if l.State == LockHeld {
		l.Last = nil
		if err := l.readLives(r, q); err != nil {
			return err
		}
	}
	if err := l.readQueue(r, q, infos[0].Waiting); err != nil {
		return err
	}
	if err := l.readTree(r, q); err != nil {
		return err
	}
	if err := l.readHandOvers(r, q); err != nil {
		return err
	}
	if l.Waits, err = rows(r, q.Waits, []any{l.name}, scanWait); err != nil {
		return err
	}
	l.Circle = circle(l.name, l.Waits)
	if err := l.readCircle(r, q); err != nil {
		return err
	}
	return l.readEvents(r, q)
}

// readLives reads whether the holders live.
func (l *look) readLives(r reader, q *protocol.Queries) error {
	infos := make([]pglock.LockInfo, len(l.Holders))
	for i, h := range l.Holders {
		infos[i] = h.LockInfo
	}
	found, err := rows(r, q.HolderLives, livesArgs(infos), scanHolderLife)
	for i, life := range livesOf(infos, found) {
		l.Holders[i].HolderLife = life
	}
	return err
}

func (l *look) factsOf(i pglock.LockInfo) HolderFacts {
	f := HolderFacts{LockInfo: i, Renewed: i.SlowestRenewal > 0} // a grant may note two times, microseconds apart
	if i.Held {
		now := i.ExpiresAt.Add(-i.Remaining)
		f.HeldFor, f.SinceRenewal = max(0, now.Sub(i.AcquiredAt)), max(0, now.Sub(i.RenewedAt))
	}
	for _, b := range l.heartbeats {
		if b.Slot == i.Slot && b.Token == i.Token {
			f.Heartbeat = b.PID
		}
	}
	return f
}

// sort puts the processes into groups by what they do for the lock.
func (l *look) sort() {
	for _, b := range l.processes {
		l.Processes = append(l.Processes, b)
		group := map[BackendUse]*[]Backend{BackendHeartbeat: &l.heartbeats, BackendWrite: &l.writes,
			BackendAtFence: &l.atFence,
			BackendRow:     &l.onRow, BackendAtRow: &l.atRow, BackendBlocker: &l.blockers}[b.Use]
		if group != nil {
			*group = append(*group, b)
		}
		const right = "the statements and states of other users' connections: that takes the role pg_read_all_stats"
		if b.Hidden && !slices.Contains(l.Unseen, right) {
			l.Unseen = append(l.Unseen, right)
		}
	}
}

// readCircle reads for how long the locks of the circle have been held.
func (l *look) readCircle(r reader, q *protocol.Queries) error {
	for n, w := range l.Circle {
		infos, err := rows(r, q.Get, []any{w.held()}, scanLock)
		if err != nil {
			return err
		}
		for _, i := range infos {
			if i.Held && i.Token == w.Token {
				l.Circle[n].HeldFor = l.factsOf(i).HeldFor
			}
		}
	}
	return nil
}

func (l *look) readQueue(r reader, q *protocol.Queries, waiting int) error {
	l.Queue.Waiting = waiting
	if waiting == 0 {
		return nil
	}
	queue, err := rows(r, q.Waiters, []any{l.name, waitersRead, "", int64(0), nil, "", "", "", nil, "", nil, "name"},
		scanWaiter)
	l.Queue.Read = len(queue)
	l.Queue.Waiting = max(waiting, len(queue))
	for _, w := range queue {
		switch {
		case l.Standby != nil: // it cannot tell who is alive
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
	return err
}

// readHandOvers reads whether the lock was handed over past the first in the queue: only then a later ticket has been
// granted, and this one still counts.
func (l *look) readHandOvers(r reader, q *protocol.Queries) error {
	first := l.Queue.Alive
	if first == nil {
		return nil
	}
	granted, err := rows(r, q.GrantedTicket, []any{l.name}, func(rows pgx.Rows) (ticket int64, err error) {
		return ticket, rows.Scan(&ticket)
	})
	if l.Queue.HandedPast = len(granted) > 0 && granted[0] > first.Ticket; err != nil || !l.Queue.HandedPast {
		return err
	}
	r, done, err := r.within()
	if err != nil {
		return err
	}
	defer done()
	since := first.Since.Format(time.RFC3339Nano)
	_, err = rows(r, q.HandOvers, []any{l.name, since}, func(rows pgx.Rows) (n int, err error) {
		var all bool
		if err = rows.Scan(&n, &all); all {
			l.Queue.HandOvers = &n
		}
		return n, err
	})
	if protocol.State(err) == "42501" { // readEvents says so
		return nil
	}
	return err
}

// within begins a savepoint: without a right, the transaction goes on.
func (r reader) within() (inner reader, done func(), err error) {
	tx, err := r.tx.Begin(r.ctx)
	if err != nil {
		return r, nil, err
	}
	return reader{ctx: r.ctx, tx: tx, at: r.at}, func() { _ = tx.Rollback(r.ctx) }, nil // the transaction ends anyway
}

// readEvents reads the history.
func (l *look) readEvents(r reader, q *protocol.Queries) error {
	r, done, err := r.within()
	if err != nil {
		return err
	}
	defer done()
	l.Events, err = rows(r, q.History,
		[]any{l.name, eventsRead, nil, texts([]EventKind{EventTakeover, EventBreak}), nil, nil}, scanEntry)
	if protocol.State(err) == "42501" {
		l.Unseen = append(l.Unseen, "the history of takeovers and breaks: you need the role pglock_admin")
		return nil
	}
	if err == nil && l.Events == nil {
		l.Events = []HistoryEntry{}
	}
	return err
}

// reader reads in one transaction, which waits for nothing longer than a moment.
type reader struct {
	ctx context.Context //nolint:containedctx // of the call that made the transaction
	tx  pgx.Tx
	at  time.Time
}

func (a *Admin) read(ctx context.Context, f func(reader) error) error {
	return pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			longest := longestLook
			if deadline, ok := ctx.Deadline(); ok {
				longest = max(time.Millisecond, min(longest, time.Until(deadline)))
			}
			ms := func(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }
			r := reader{ctx: ctx, tx: tx}
			at, err := rows(r, protocol.LookBriefly, []any{ms(min(patience, longest/2)), ms(longest)},
				func(rows pgx.Rows) (us int64, err error) {
					return us, rows.Scan(&us)
				})
			if err != nil {
				return err
			}
			r.at = protocol.Moment(&at[0])
			return f(r)
		})
}

// rows reads the answer of one statement. It names no prepared statement, which poolers may lose.
func rows[T any](r reader, sql string, args []any, scan func(pgx.Rows) (T, error)) ([]T, error) {
	mode := r.tx.Conn().Config().DefaultQueryExecMode
	if mode != pgx.QueryExecModeSimpleProtocol {
		mode = pgx.QueryExecModeExec
	}
	answer, err := r.tx.Query(r.ctx, sql, append([]any{mode}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(answer, func(row pgx.CollectableRow) (T, error) { return scan(answer) })
}

func scanBrokenGuard(r pgx.Rows) (g BrokenGuard, err error) {
	return g, r.Scan(&g.Table, &g.Resource, &g.Key, &g.Problem)
}

func scanWait(r pgx.Rows) (w Wait, err error) {
	var waiting int64
	var holder, session, by *string
	var token *pglock.Token
	err = r.Scan(&w.Holds, &w.Waiter, &w.Session, &w.SameOwner, &w.Ticket, &w.For, &waiting, &holder, &session, &token,
		&by)
	w.By = protocol.OrZero(by)
	w.Waiting = time.Duration(waiting) * time.Microsecond
	w.Holder, w.HolderSession, w.Token = protocol.OrZero(holder), protocol.OrZero(session), protocol.OrZero(token)
	return w, err
}

// tableLock is somebody who keeps readers from a table of pglock.
type tableLock struct {
	table, prepared, user, application, state, statement string
	pid                                                  int
	transaction, inState                                 time.Duration
	waitsFor                                             []int // processes, while it does not have the lock yet
}

func scanTableLock(r pgx.Rows) (t tableLock, err error) {
	var pid *int
	var gid, user, application, state, statement *string
	var us, inState *int64
	err = r.Scan(&t.table, &pid, &gid, &user, &application, &state, &us, &statement, &inState, &t.waitsFor)
	t.pid, t.prepared, t.user, t.application = protocol.OrZero(pid), protocol.OrZero(gid), protocol.OrZero(user),
		protocol.OrZero(application)
	t.state, t.statement = protocol.OrZero(state), protocol.OrZero(statement)
	t.transaction = time.Duration(protocol.OrZero(us)) * time.Microsecond
	t.inState = time.Duration(protocol.OrZero(inState)) * time.Microsecond
	return t, err
}
