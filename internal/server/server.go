// Package server talks to PostgreSQL for one client. It uses the application's pool, where simultaneous calls travel
// together. The heartbeat has a connection outside the pool, so that no lease is lost when the application exhausts
// the pool. What keeps a lease or gives one back uses either, and whatever else the process can get (package lending).
package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// attempts limits how often a statement is sent that the server undoes for a passing reason.
const attempts = 10

// How many statements of a kind may be under way before calls wait for each other.
const (
	acquiresWide = 1
	waitsWide    = 4
	releasesWide = 1
	checksWide   = 2
	handOverWide = 4
)

// Server is a database as one client uses it. It is safe for concurrent use.
type Server struct {
	Queries   *protocol.Queries
	executor  protocol.Executor
	pool      *pgxpool.Pool
	lender    *lending.Lender[*pgx.Conn] // for what keeps leases and gives them back
	losses    losses                     // of the own connection
	direct    *lending.Lender[*pgx.Conn] // for LISTEN; nil: the own connection listens
	listening atomic.Pointer[hearing]    // the own connection that listens, or did
	known     atomic.Pointer[pgx.Conn]   // the own connection that the server knows as that, until it is closed
	unknown   atomic.Int64               // how many such were closed
	attempts  sync.WaitGroup             // to connect
	askAgain  atomic.Int64               // nanoseconds: when servers that have refused may be asked again
	silent    suspicions                 // of what has no answer
	pace      pace                       // of the answers
	refusals  refusals                   // of connections

	life      context.Context // ends with Close: no statement outlives it
	end       context.CancelFunc
	errClosed error // what requests fail with then

	acquires, waits, again *coalesce.Coalescer[*pgx.Conn, protocol.Request, protocol.Answer]
	releases, announced    *coalesce.Coalescer[*pgx.Conn, release, protocol.Ending]
	checks                 *coalesce.Coalescer[*pgx.Conn, protocol.Claim, protocol.Remains]
	handOvers              *coalesce.Coalescer[*pgx.Conn, protocol.Bequest, protocol.Succession]
}

// New connects to the schema of the pool's database. After Drain or Close requests fail with errClosed.
func New(pool *pgxpool.Pool, schema string, direct *pgx.ConnConfig, errClosed error) *Server {
	s := &Server{Queries: protocol.NewQueries(schema), pool: pool, errClosed: errClosed}
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // its own life, ended by Close
	s.silent.all = make(map[*suspicion]struct{})
	s.executor.Watch = s.watch
	if s.lender = newLender(s); direct != nil {
		s.direct = newDirect(s, direct)
	}
	s.acquires = gathering(s, acquiresWide, errClosed, s.lendToTry, inStep(s, s.requests))
	s.waits = gathering(s, waitsWide, errClosed, s.lendPooled, inStep(s, s.requests))
	s.again = gathering(s, waitsWide, errClosed, s.lend, inStep(s, s.requests))
	s.releases = gathering(s, releasesWide, errClosed, s.lend, s.releaseTogether)
	s.announced = gathering(s, waitsWide, errClosed, s.lend, s.releaseTogether)
	s.checks = gathering(s, checksWide, errClosed, s.lend, inStep(s, s.Queries.Check))
	s.handOvers = gathering(s, handOverWide, errClosed, s.lendOpen, inStep(s, s.handOver))
	s.acquires.Patience = protocol.Patience
	s.handOvers.Most = 1
	return s
}

// inStep sends calls as one step: each is one element of its arguments and of its answers.
func inStep[Q, A any](
	s *Server, step func([]Q, []A) protocol.Step,
) func(context.Context, *pgx.Conn, []Q, []A) error {
	return func(ctx context.Context, conn *pgx.Conn, calls []Q, answers []A) error {
		return s.executor.Run(ctx, conn, step(calls, answers))
	}
}

// gathering makes calls of one kind travel together. Their statement goes on when they leave.
func gathering[Q, A any](
	s *Server, width int, errClosed error, lend lends,
	send func(context.Context, *pgx.Conn, []Q, []A) error,
) *coalesce.Coalescer[*pgx.Conn, Q, A] {
	return coalesce.New(coalesce.Config[*pgx.Conn, Q, A]{
		Width: width, Life: s.life, Limit: protocol.Patience, ErrShut: errClosed, Lend: lend,
		Send: func(ctx context.Context, conn *pgx.Conn, calls []Q) ([]A, error) {
			answers := make([]A, len(calls))
			return answers, send(ctx, conn, calls, answers)
		},
		// on a standby each half would be refused, too
		Undone: func(err error) bool { return !protocol.ConnectionLost(err) && !protocol.ReadOnly(err) },
		Passes: func(err error) bool { return protocol.Transient(err) && !protocol.LockedOut(err) },
	})
}

// BeginExplicitly says that the sessions' default isolation is not READ COMMITTED.
func (s *Server) BeginExplicitly() { s.executor.BeginExplicitly() }

// OnAbandoned sets who is told what the server did for a call that has left: a request, a release, or a hand-over. Call
// it before the first request.
func (s *Server) OnAbandoned(request func(protocol.Request, protocol.Answer, error),
	released func(protocol.Claim, protocol.Ending, error),
	handedOver func(protocol.Bequest, protocol.Succession, error)) {
	s.acquires.Abandoned, s.waits.Abandoned, s.again.Abandoned = request, request, request
	left := func(r release, e protocol.Ending, err error) { released(r.Claim, e, err) }
	s.releases.Abandoned, s.announced.Abandoned = left, left
	s.handOvers.Abandoned = handedOver
}

// Trouble is who hears of what a server survives at a cost. Each may be nil.
type Trouble struct {
	// Unnamed: from now on statements go without names for so long, because a name was lost, so many times in a row.
	Unnamed func(count int, lasting time.Duration, err error)
	// Lost: the own connection was lost.
	Lost func()
	// Reconnected: it was lost with this error, and a new one works after so long.
	Reconnected func(after time.Duration, err error)
}

// OnTrouble sets who hears of trouble. Call it before the first request.
func (s *Server) OnTrouble(t Trouble) {
	s.executor.Unnamed, s.losses.lost, s.losses.reconnected = t.Unnamed, t.Lost, t.Reconnected
}

// Drain refuses requests for locks from now on, and returns when none is under way; when ctx ends, those end too.
func (s *Server) Drain(ctx context.Context) {
	s.acquires.Shut()
	s.waits.Shut()
	s.again.Shut()
	defer context.AfterFunc(ctx, s.end)()
	s.acquires.Wait()
	s.waits.Wait()
	s.again.Wait()
}

// Close ends every statement, and returns when they have ended.
func (s *Server) Close() {
	s.end()
	for _, c := range []interface {
		Shut()
		Wait()
	}{s.acquires, s.waits, s.again, s.releases, s.announced, s.checks, s.handOvers} {
		c.Shut()
		c.Wait()
	}
	if s.lender.Close(); s.direct != nil {
		s.direct.Close()
	}
	s.attempts.Wait()
}

// Pool is the application's.
func (s *Server) Pool() *pgxpool.Pool { return s.pool }

// lendPooled lends a connection of the pool.
func (s *Server) lendPooled(ctx context.Context) (conn *pgx.Conn, give func(), err error) {
	err = s.gently(ctx, s.poolServes, func(ctx context.Context) error {
		conn, give, err = s.borrow(ctx)
		return err
	})
	return conn, give, err
}

// lend lends a connection of the pool or, if that has none soon, another that can be had.
func (s *Server) lend(ctx context.Context) (*pgx.Conn, func(), error) {
	loan, err := s.lendAny(ctx, lending.PoolFirst)
	return loan.Conn, loan.Give, err
}

// lendOpen is lend for calls that share no statement: each would wait for the pool behind those before it.
func (s *Server) lendOpen(ctx context.Context) (*pgx.Conn, func(), error) {
	loan, err := s.lendAny(ctx, lending.OpenOfMany)
	return loan.Conn, loan.Give, err
}

// lendAny lends a connection that can be had. The heartbeat, whose orders these two are, has attempts of its own.
func (s *Server) lendAny(ctx context.Context, order lending.Order) (loan lending.Loan[*pgx.Conn], err error) {
	beats := order == lending.OwnFirst || order == lending.IdleFirst
	open := func() bool { return beats || s.poolServes() || s.lender.Has() }
	err = s.gently(ctx, open, func(ctx context.Context) error {
		if order == lending.PoolFirst && s.refusals.awaited() != nil && !s.poolServes() && s.lender.Has() {
			order = lending.OpenOfMany // the pool would be refused another
		}
		loan, err = s.lender.Lend(ctx, order)
		return err
	})
	return loan, err
}

// lendToTry is for requests that do not wait: it does not wait for an exhausted pool either. Where no connection comes
// within Patience the error says so, and nobody's context has ended. It is a coalesce.LateError.
func (s *Server) lendToTry(ctx context.Context) (conn *pgx.Conn, give func(), err error) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, protocol.Patience)
	defer cancel()
	idle, inUse := s.pooled()
	stat := s.pool.Stat()
	opens := stat.TotalConns() < stat.MaxConns() || s.refusals.awaited() != nil // the last is being opened: it may hang
	if idle || !inUse && opens {
		conn, give, err = s.lendPooled(limited)
	} else if conn, give, err = s.lend(limited); err != nil && ctx.Err() == nil { // else whoever asked says so
		err = noneFree(limited, err, began, s.pool)
	}
	if err != nil && ctx.Err() == nil {
		if _, inUse := s.pooled(); limited.Err() != nil && !inUse { // the pool is not why
			err = fmt.Errorf("no connection to the server in %v: %w", time.Since(began).Round(time.Millisecond), err)
		}
		if err = failure.OfOurs(err); limited.Err() != nil {
			err = &coalesce.LateError{Err: err}
		}
	}
	return conn, give, err
}

// Query runs one step on a connection of the pool. It repeats what a standby refused or a passing reason undid.
func (s *Server) Query(ctx context.Context, step protocol.Step) error {
	return s.past(func() error { return s.repeat(ctx, s.lendPooled, step) })
}

// reach is Query for what keeps a lease or gives one back: if the pool has no connection soon, it uses another.
func (s *Server) reach(ctx context.Context, step protocol.Step) error {
	return s.past(func() error { return s.repeat(ctx, s.lend, step) })
}

func (s *Server) repeat(ctx context.Context, lend lends, step protocol.Step) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	return repeat(Valueless{ctx}, lend, func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, protocol.Patience)
		defer cancel()
		return s.executor.Run(ctx, conn, step)
	})
}

// Acquire requests a lock. Whoever asks again may hold it already: like what keeps a lease, it uses another connection
// if the pool has none soon.
func (s *Server) Acquire(ctx context.Context, a protocol.Request) (answer protocol.Answer, err error) {
	a.Since = time.Now()
	err = s.past(func() error {
		switch {
		case a.Subtree:
			answer, err = s.acquireSubtree(ctx, a)
		case a.Retry:
			answer, err = s.again.Do(ctx, a)
		case a.Wait:
			answer, err = s.waits.Do(ctx, a)
		default:
			answer, err = s.acquires.Do(ctx, a)
		}
		return err
	})
	if NeverSent(err) && !a.Retry && ctx.Err() != nil { // before others, these two wait for the pool
		err = noneFree(ctx, err, a.Since, s.pool)
	}
	return answer, err
}

// acquireSubtree requests a subtree, in a statement of its own: it may wait for others' transactions.
func (s *Server) acquireSubtree(ctx context.Context, a protocol.Request) (protocol.Answer, error) {
	answers, lend := make([]protocol.Answer, 1), s.lend
	if !a.Wait && !a.Retry {
		lend = s.lendToTry
	}
	err := s.repeat(ctx, lend, s.requests([]protocol.Request{a}, answers))
	return answers[0], err
}

// past repeats what a standby has refused, once more than the pool has idle connections: each is closed when it is
// refused, and a new one may reach the primary.
func (s *Server) past(do func() error) error {
	err := do()
	if !protocol.ReadOnly(err) {
		return err
	}
	for old := s.pool.Stat().IdleConns() + 1; old > 0 && protocol.ReadOnly(err); old-- {
		err = do()
	}
	return err
}

// requests is the step of requests that have a connection now.
func (s *Server) requests(calls []protocol.Request, answers []protocol.Answer) protocol.Step {
	for i, a := range calls {
		answers[i].Waited = time.Since(a.Since)
	}
	return s.Queries.Acquire(calls, answers)
}

// Check asks what became of a lease.
func (s *Server) Check(ctx context.Context, c protocol.Claim) (protocol.Remains, error) {
	return s.checks.Do(ctx, c)
}

// Renew renews a lease. It waits for its row.
func (s *Server) Renew(ctx context.Context, c protocol.Claim) (v protocol.Verdict, err error) {
	err = s.reach(ctx, s.Queries.Renew(c, protocol.Patience, &v))
	return v, err
}

// release is a call that ends a lease.
type release struct {
	protocol.Claim
	announce bool
}

// Release ends a lease. With announce it also notifies the next holder of an exclusive lock in the same round trip,
// in a separate transaction, because NOTIFY must not wait for the disk; where a standby is waited for it does not. The
// answer leaves out what was announced. Releases without an announcement wait for none.
func (s *Server) Release(ctx context.Context, c protocol.Claim, announce bool) (e protocol.Ending, err error) {
	announce = announce && c.Slot == 0
	together := s.releases
	if announce {
		together = s.announced
	}
	err = s.past(func() error {
		e, err = together.Do(ctx, release{c, announce})
		return err
	})
	return e, err
}

// releaseTogether ends leases, and announces what is wanted after that.
func (s *Server) releaseTogether(ctx context.Context, conn *pgx.Conn, calls []release,
	endings []protocol.Ending) error {
	claims := make([]protocol.Claim, len(calls))
	var names []string
	for i, c := range calls {
		if claims[i] = c.Claim; c.announce {
			names = append(names, c.Name)
		}
	}
	ends := s.Queries.Release(claims, endings)
	if names == nil {
		return s.executor.Run(ctx, conn, ends)
	}
	heads, told := make([]*int, len(names)), int64(-1) // it did not go along
	for i := range heads {
		heads[i] = new(int)
	}
	err := s.executor.Run(ctx, conn, ends, s.Queries.AnnounceUnconfirmed(names, heads, &told))
	for i, c := range calls {
		if h := &endings[i].Handed; c.announce && told >= 0 {
			h.Announced = slices.Contains(h.Slots, 0)
			h.Slots, h.Watched = withoutHead(h.Slots), false
		}
	}
	return err
}

// HandOver ends a lease and gives the lock to a waiter with the label; with look it only says whether there is one.
func (s *Server) HandOver(ctx context.Context, c protocol.Claim, to string, look bool) (next protocol.Succession,
	err error) {
	err = s.past(func() error {
		next, err = s.handOvers.Do(ctx, protocol.Bequest{Claim: c, To: to, Look: look})
		return err
	})
	return next, err
}

// handOver is the step of one hand-over.
func (s *Server) handOver(calls []protocol.Bequest, answers []protocol.Succession) protocol.Step {
	return s.Queries.HandOver(calls[0], &answers[0])
}

// withoutHead returns the slots that were not announced with the release.
func withoutHead(slots []int) (others []int) {
	for _, s := range slots {
		if s != 0 {
			others = append(others, s)
		}
	}
	return others
}

// Announce notifies the new holders of these slots, and the watchers of the locks.
func (s *Server) Announce(ctx context.Context, names []string, slots []*int) error {
	return s.reach(ctx, s.Queries.Announce(names, slots, new(int64)))
}

// Notify notifies a channel.
func (s *Server) Notify(ctx context.Context, channel, payload string) error {
	return s.Query(ctx, s.Queries.Notify(channel, payload))
}

// Timeline returns how long ago the server's timeline changed; changed is false if it never did, or cannot be seen.
func (s *Server) Timeline(ctx context.Context) (since time.Duration, changed bool, err error) {
	var us *int64
	err = s.Query(ctx, s.Queries.Timeline(&us))
	return time.Duration(protocol.OrZero(us)) * time.Microsecond, us != nil, err
}
