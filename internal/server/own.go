package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/build"
	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// goodbye limits the polite end of a connection that is no longer needed. It is closed in any case.
const goodbye = 100 * time.Millisecond

// claimsFor is how long the answer to a look waits to mark the connection that listens. A later look marks it.
const claimsFor = 50 * time.Millisecond

// newLender makes what lends a connection to those who keep leases or give them back: the client's own, outside the
// pool, or another that the process can get.
func newLender(s *Server) *lending.Lender[*pgx.Conn] {
	return lending.New(lending.Config[*pgx.Conn]{
		Life: s.life, Limit: protocol.Patience, Dials: s.dialsAtOnce(), Dial: s.dial, Borrow: s.borrow,
		Serves: func() (idle, full bool) {
			stat := s.pool.Stat()
			// also while one that is opened hangs: whoever keeps a lease queues for the others
			return stat.IdleConns() > 0, stat.TotalConns() >= stat.MaxConns()
		},
		Usable: usable, Hang: s.hang, Attend: s.attend,
	})
}

// newDirect makes what lends a connection that only listens, and goes directly to the server.
func newDirect(s *Server, direct *pgx.ConnConfig) *lending.Lender[*pgx.Conn] {
	return lending.New(lending.Config[*pgx.Conn]{
		Life: s.life, Limit: protocol.Patience, Usable: usable, Hang: s.hang, Attend: s.attend,
		Dial: func(ctx context.Context) (*pgx.Conn, error) {
			config := direct.Copy()
			ears := giveEars(config, func(error) {}) // the listener says what it costs
			conn, err := s.open(ctx, config)
			if err == nil {
				conn.PgConn().CustomData()[earsKey] = ears
			}
			return conn, err
		},
	})
}

func usable(conn *pgx.Conn) bool {
	e := earsOf(conn)
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.spoilt && !conn.IsClosed() && !conn.PgConn().IsBusy() && conn.PgConn().TxStatus() == 'I'
}

func (s *Server) hang(conn *pgx.Conn) {
	if s.known.CompareAndSwap(conn, nil) {
		s.unknown.Add(1)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), goodbye)
	defer cancel()
	_ = conn.Close(ctx)
	e := earsOf(conn)
	e.change(func() { e.lost = cmp.Or(e.lost, lending.ErrGone) })
}

// run runs a step on the own connection, or on another that can be had sooner, and keeps the own one open for the next.
// Getting a connection may take half of the time of ctx, so that the step has the other half.
func (s *Server) run(ctx context.Context, step protocol.Step) error {
	within := protocol.Patience
	if deadline, bounded := ctx.Deadline(); bounded {
		within = min(within, time.Until(deadline))
	}
	living, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	err := s.lent(living, within/2, lending.OpenFirst, func(ctx context.Context, loan lending.Loan[*pgx.Conn]) error {
		return s.executor.Run(ctx, loan.Conn, step)
	})
	if err != nil && ctx.Err() == nil && s.life.Err() != nil { // else a release that asks again would never end
		err = fmt.Errorf("%w: %w", s.errClosed, err)
	}
	return err
}

// lent lends f a connection that can be had within a time. With OwnFirst, which renews, looks and gives signs of life,
// f is repeated over another if the leader does not have the first.
func (s *Server) lent(
	ctx context.Context, within time.Duration, order lending.Order,
	f func(context.Context, lending.Loan[*pgx.Conn]) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, protocol.Patience)
	defer cancel()
	s.lender.Keep()
	brief, got := context.WithTimeout(ctx, within)
	loan, err := s.lendAny(Valueless{brief}, order)
	got()
	if err != nil {
		return &coalesce.NotSentError{Err: err}
	}
	if !loan.Own {
		defer loan.Give()
		return f(ctx, loan)
	}
	err = f(ctx, loan)
	s.losses.note(err)
	if loan.Give(); errors.Is(err, errMoved) && order == lending.OwnFirst {
		return s.lent(ctx, within, order, f)
	}
	return err
}

// losses notes when an own connection was lost, until one works.
type losses struct {
	lost        func()                               // nil: nobody hears of it
	reconnected func(after time.Duration, err error) // or of that

	mu    sync.Mutex
	since time.Time // zero: none was lost
	cause error
}

// note notes how a statement on an own connection ended.
func (l *losses) note(err error) {
	lost := protocol.ConnectionLost(err) && !errors.Is(err, protocol.ErrUnconfirmed)
	l.mu.Lock()
	since, cause := l.since, l.cause
	switch {
	case !lost:
		l.since, l.cause = time.Time{}, nil
	case since.IsZero():
		l.since, l.cause = time.Now(), err
	}
	l.mu.Unlock()
	switch {
	case lost && since.IsZero() && l.lost != nil:
		l.lost()
	case !lost && !since.IsZero() && l.reconnected != nil:
		l.reconnected(time.Since(since), cause)
	}
}

// CloseOwn closes the own connection until it is used again.
func (s *Server) CloseOwn() { s.lender.Rest() }

// dial opens an own connection.
func (s *Server) dial(ctx context.Context) (conn *pgx.Conn, err error) {
	var ears *ears
	if conn, err = s.connect(ctx, func(c *pgx.ConnConfig) {
		ears = giveEars(c, s.losses.note)
		waitForLeader(ctx, c)
	}); err == nil {
		conn.PgConn().CustomData()[earsKey] = ears
	}
	return conn, err
}

// Connect opens a connection outside the pool: of the configuration, or if that is nil made as the pool would make it,
// and as gently. It is the caller's. A handler of the application's hears none of its notifications: it would run in
// our goroutines.
func (s *Server) Connect(ctx context.Context, direct *pgx.ConnConfig) (conn *pgx.Conn, err error) {
	deafen := func(c *pgx.ConnConfig) { c.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {} }
	if direct == nil {
		err = s.gently(Valueless{ctx}, func() bool { return false }, func(ctx context.Context) error {
			conn, err = s.connect(ctx, deafen)
			return err
		})
		return conn, err
	}
	config := direct.Copy()
	deafen(config)
	return s.open(ctx, config)
}

// open opens a connection that the library uses by itself. Whatever the application has set there, the end of a context
// interrupts our waiting at once: often it is nothing to tell the server, and nothing that its answer must be awaited
// for.
func (s *Server) open(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	protocol.ObserveCommits(config)
	argument.NameApplication(config.RuntimeParams)
	return s.connectAny(ctx, config)
}

func (s *Server) connect(ctx context.Context, prepare func(*pgx.ConnConfig)) (conn *pgx.Conn, err error) {
	defer func() {
		if err == nil {
			s.refusals.came(nil)
		}
		s.refusals.failed(ctx, err)
	}()
	pool := s.pool.Config()
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, fmt.Errorf("BeforeConnect: %w", err)
		}
	}
	prepare(config)
	if conn, err = s.open(ctx, config); err != nil {
		return nil, err
	}
	if pool.AfterConnect != nil {
		if err := pool.AfterConnect(ctx, conn); err != nil {
			_ = conn.Close(ctx)
			return nil, fmt.Errorf("AfterConnect: %w", err)
		}
	}
	prepareConn, hook := pool.PrepareConn, "PrepareConn"
	//lint:ignore SA1019 the pool still runs it
	if before := pool.BeforeAcquire; before != nil && prepareConn == nil {
		hook = "BeforeAcquire"
		prepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) { return before(ctx, conn), nil }
	}
	if prepareConn != nil {
		if ok, err := prepareConn(ctx, conn); err != nil || !ok {
			_ = conn.Close(ctx)
			refused := fmt.Errorf("the pool's %s refused a connection of the client", hook)
			if err = errors.Join(err, ctx.Err()); err != nil {
				refused = fmt.Errorf("%w: %w", refused, err)
			}
			return nil, refused
		}
	}
	return conn, nil
}

// RenewAll renews leases, and returns the verdict of each.
func (s *Server) RenewAll(
	ctx context.Context, within time.Duration, who protocol.Session, claims []protocol.Claim,
) (map[protocol.Claim]protocol.Verdict, error) {
	verdicts := make(map[protocol.Claim]protocol.Verdict, len(claims))
	return verdicts, s.beat(ctx, within, lending.OwnFirst, who, s.Queries.RenewAll(claims, verdicts))
}

// Look returns every ticket of the session that is still queued. It goes over another connection than the hints, if
// there is one: looks find what was granted while the connection that listens has died in silence. If there are no
// hints it goes over the own one, which pgxpool does not try first.
func (s *Server) Look(
	ctx context.Context, within time.Duration, who protocol.Session, nested []int64,
) (map[int64]protocol.Sighting, error) {
	order := lending.OwnFirst
	if s.lender.Listens() {
		order = lending.IdleFirst
	}
	sightings := make(map[int64]protocol.Sighting)
	err := s.beat(ctx, within, order, who, s.Queries.Look(who, nested, sightings))
	if h := s.listening.Load(); err == nil && h != nil && !s.wasTold(h.ears) {
		brief, cancel := context.WithTimeout(ctx, claimsFor)
		loan, err := s.lender.Claim(brief, h.conn)
		if cancel(); err == nil {
			s.mark(ctx, who, h.conn)
			loan.Give()
		}
	}
	return sightings, err
}

// beat runs a step of the heartbeat, and marks an own connection that is new.
func (s *Server) beat(
	ctx context.Context, within time.Duration, order lending.Order, who protocol.Session, step protocol.Step,
) error {
	return s.lent(ctx, within, order, func(ctx context.Context, loan lending.Loan[*pgx.Conn]) error {
		err := s.executor.Run(ctx, loan.Conn, step)
		if err == nil && loan.Own {
			s.mark(ctx, who, loan.Conn)
		}
		return err
	})
}

// mark tells the server whose connection this is, so that people find a holder. Nothing depends on it. The server knows
// one connection of a client: when that is closed, the others tell again.
func (s *Server) mark(ctx context.Context, who protocol.Session, conn *pgx.Conn) {
	if e := earsOf(conn); !s.wasTold(e) {
		e.marked.Store(false)
		_ = s.sign(ctx, who, lending.Loan[*pgx.Conn]{Conn: conn, Own: true})
	}
}

// wasTold reports whether the server was told whose connection it is since the one that it knew was closed.
func (s *Server) wasTold(e *ears) bool { return e.told.Load() == s.unknown.Load()+1 }

// Sign gives a sign of life.
func (s *Server) Sign(ctx context.Context, within time.Duration, who protocol.Session) error {
	return s.lent(ctx, within, lending.OwnFirst, func(ctx context.Context, loan lending.Loan[*pgx.Conn]) error {
		return s.sign(ctx, who, loan)
	})
}

// sign gives a sign of life and, over an own connection, tells whose it is until the server knows. A connection of the
// pool is never marked: the mark stays until it ends.
func (s *Server) sign(ctx context.Context, who protocol.Session, loan lending.Loan[*pgx.Conn]) error {
	if !loan.Own {
		return s.executor.Run(ctx, loan.Conn, s.Queries.Mark(who, 0, build.Version(), new(*bool)))
	}
	e, pid := earsOf(loan.Conn), uint32(0)
	if !e.marked.Load() {
		pid = loan.Conn.PgConn().PID()
	}
	told := s.unknown.Load() + 1
	var marked *bool
	err := s.executor.Run(ctx, loan.Conn, s.Queries.Mark(who, pid, build.Version(), &marked))
	if err != nil || marked == nil { // somebody had locked the session's row
		return err
	}
	e.told.Store(told)
	e.marked.Store(*marked)
	if *marked {
		s.known.Store(loan.Conn)
	}
	return nil
}

// RenewWaiting renews a lease, and waits at most so long for its row.
func (s *Server) RenewWaiting(
	ctx context.Context, within time.Duration, c protocol.Claim, wait time.Duration,
) (v protocol.Verdict, err error) {
	err = s.lent(ctx, within, lending.OwnFirst, func(ctx context.Context, loan lending.Loan[*pgx.Conn]) error {
		return s.executor.Run(ctx, loan.Conn, s.Queries.Renew(c, wait, &v))
	})
	return v, err
}

// OwnTickets returns the requests behind tickets of the session.
func (s *Server) OwnTickets(ctx context.Context, who protocol.Session, tickets []int64) (all []protocol.RequestID,
	err error) {
	err = s.run(ctx, s.Queries.OwnTickets(who, tickets, &all))
	return all, err
}

// TakeBack takes requests back, all of them or none.
func (s *Server) TakeBack(ctx context.Context, who protocol.Session, spend bool,
	requests []protocol.RequestID) ([]protocol.TakenBack, error) {
	backs := make([]protocol.TakenBack, len(requests))
	return backs, s.run(ctx, s.Queries.TakeBack(who, spend, requests, backs))
}

// ReleaseAll releases leases.
func (s *Server) ReleaseAll(ctx context.Context, claims []protocol.Claim) ([]protocol.Ending, error) {
	endings := make([]protocol.Ending, len(claims))
	return endings, s.run(ctx, s.Queries.ReleaseAll(claims, endings))
}

// AnnounceOwn is Announce for those who use the own connection.
func (s *Server) AnnounceOwn(ctx context.Context, names []string, slots []*int) error {
	return s.run(ctx, s.Queries.Announce(names, slots, new(int64)))
}

// AnnounceUnconfirmed is AnnounceOwn for grants of statements whose answers were lost. Where a standby may be waited
// for it tells nobody: their holders find them by looks, and confirm them.
func (s *Server) AnnounceUnconfirmed(ctx context.Context, names []string, slots []*int) error {
	return s.run(ctx, s.Queries.AnnounceUnconfirmed(names, slots, new(int64)))
}

// EndSession ends the session, with all its tickets.
func (s *Server) EndSession(ctx context.Context, who protocol.Session) error {
	return s.run(ctx, s.Queries.EndSession(who))
}

// Sweep removes what nobody needs any more, unless a client of this database has done so within the time every. more
// says that there may be more.
func (s *Server) Sweep(ctx context.Context, every time.Duration) (swept, more bool, err error) {
	err = s.run(ctx, s.Queries.Sweep(every, &swept, &more))
	return swept, more, err
}
