package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lending"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// pair is one server under one address or two, as if it were two. What is connected to the first may fall silent.
type pair struct {
	*Server
	db    *pgtest.DB
	test  context.Context // of the test: its end ends the lines
	lines *sync.WaitGroup
	asks  atomic.Bool // the pool asks every idle connection whether it works
	quiet atomic.Bool // those that are connected to the first hear nothing more; later ones do
	late  atomic.Bool // they hear everything after slowly
}

// slowly is how long an answer takes over a slow network: longer than silentFor.
const slowly = 1200 * time.Millisecond

// line passes on what a connection says in both ways, and nothing more to the client once it is quiet: not even that
// the connection is lost.
func (p *pair) line(server net.Conn) net.Conn {
	client, here := net.Pipe()
	context.AfterFunc(p.test, func() { _ = here.Close() })
	p.lines.Go(func() {
		_, _ = io.Copy(server, here)
		_, _ = io.Copy(io.Discard, here) // it is gone
		_ = server.Close()
	})
	p.lines.Go(func() {
		said := make([]byte, 1<<13)
		for {
			n, err := server.Read(said)
			switch {
			case p.quiet.Load() && err == nil:
			case p.quiet.Load():
				return
			case err != nil:
				_ = here.Close()
				return
			case p.late.Load() && !pause.Exactly(p.test, slowly):
				return
			default:
				_, _ = here.Write(said[:n])
			}
		}
	})
	return client
}

const firstHost, secondHost = "127.0.0.1:1", "127.0.0.1:2"

func startPair(t *testing.T, hosts ...string) *pair {
	t.Helper()
	db := pgtest.Database(t)
	at := db.Conn(t).Config()
	own := address(at.Host, at.Port)
	p := &pair{db: db, test: t.Context(), lines: pgtest.Group(t)}
	config := must.Get(pgxpool.ParseConfig(strings.Replace(db.URL(), own, strings.Join(hosts, ","), 1) +
		"&target_session_attrs=read-write&connect_timeout=1"))(t)
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return p.asks.Load() }
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if !p.quiet.Load() { // a busy machine takes its time
			c.ConnectTimeout = 10 * time.Second
		}
		return nil
	}
	config.ConnConfig.DialFunc = func(ctx context.Context, network, to string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, own)
		if err != nil || to != firstHost {
			return conn, err
		}
		if p.quiet.Load() && len(hosts) == 1 {
			return conn, nil // the next leader
		}
		return p.line(conn), nil
	}
	pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	p.Server = New(pool, "pglock", nil, context.Canceled)
	t.Cleanup(p.Close)
	if err := p.sign(t); err != nil || p.leads(t) != firstHost {
		t.Fatalf("%v, at %s", err, p.leads(t))
	}
	return p
}

// sign gives a sign of life.
func (p *pair) sign(t *testing.T) error {
	return p.Sign(t.Context(), time.Second, protocol.Session{Key: uuid.New(), Holder: "holder", TTL: time.Minute})
}

// idle gives the pool idle connections.
func (p *pair) idle(t *testing.T, n int) {
	t.Helper()
	all := make([]*pgxpool.Conn, n)
	for i := range all {
		var err error
		if all[i], err = p.pool.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range all {
		conn.Release()
	}
}

// fall makes the first server fall silent, without the processes of its connections.
func (p *pair) fall(t *testing.T) {
	t.Helper()
	p.quiet.Store(true)
	if _, err := p.db.Conn(t).Exec(t.Context(), `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE datname = $1 AND pid <> pg_backend_pid()`, p.db.Name()); err != nil {
		t.Fatal(err)
	}
}

// leads is the server that the own connection leads to.
func (p *pair) leads(t *testing.T) string {
	t.Helper()
	loan := must.Get(p.lender.Lend(t.Context(), lending.Own))(t)
	defer loan.Give()
	at := loan.Conn.Config()
	return address(at.Host, at.Port)
}

// A leader is cut off in silence, and another server leads, by an address of its own or by the same: the statement that
// waits for the first is answered by the other long before it is given up. So is one that waits over the pool.
func TestASilentLeaderIsLeftForAnother(t *testing.T) {
	t.Parallel()
	for name, hosts := range map[string][]string{"two addresses": {firstHost, secondHost}, "one address": {firstHost}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, hosts...)
			listens := must.Get(p.Listen(t.Context()))(t)
			p.idle(t, 2)
			p.fall(t)
			query := func(ctx context.Context) error { return p.Query(ctx, protocol.Step{SQL: "select 1"}) }
			asks := []struct {
				what string
				do   func(context.Context) error
				lost bool
			}{
				{"a sign of life", func(context.Context) error { return p.sign(t) }, false},
				{"LISTEN", func(ctx context.Context) error { return listens.Subscribe(ctx, "a") }, true},
				{"the pool", query, true},
				{"the pool, which asks first", func(ctx context.Context) error {
					p.asks.Store(true)
					return query(ctx)
				}, false},
			}
			if len(hosts) == 2 { // whichever comes first has the silent connection
				asks[0], asks[1] = asks[1], asks[0]
			}
			for _, ask := range asks {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), protocol.Patience)
				err := ask.do(ctx)
				cancel()
				if took := time.Since(began); took > protocol.Patience*2/3 ||
					(protocol.ConnectionLost(err) || errors.Is(err, lending.ErrGone)) != ask.lost {
					t.Errorf("%s: %v after %v, lost is to be %v", ask.what, err, took, ask.lost)
				}
			}
			if at := p.leads(t); at != hosts[len(hosts)-1] {
				t.Errorf("the own connection leads to %s", at)
			}
		})
	}
}

// A leader that is only slow is not left, and is not asked again as soon. So it is over the pool, too.
func TestASlowLeaderIsNotLeft(t *testing.T) {
	t.Parallel()
	for name, hosts := range map[string][]string{"two addresses": {firstHost, secondHost}, "one address": {firstHost}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, hosts...)
			locking := p.db.Conn(t)
			must.Get(locking.Exec(t.Context(), "select pg_advisory_lock(1)"))(t)
			answered := make(chan error)
			lock := protocol.Step{SQL: "select pg_catalog.pg_advisory_xact_lock(1)"}
			go func() { answered <- p.Query(t.Context(), lock) }()
			go func() {
				answered <- p.lent(t.Context(), time.Second, lending.OwnFirst,
					func(ctx context.Context, loan lending.Loan[*pgx.Conn]) error {
						return p.executor.Run(ctx, loan.Conn, lock)
					})
			}()
			pgtest.Eventually(t, "the leader is found slow again", func() bool {
				p.silent.mu.Lock()
				defer p.silent.mu.Unlock()
				return p.silent.slow == 2
			})
			must.Get(locking.Exec(t.Context(), "select pg_advisory_unlock(1)"))(t)
			if err := errors.Join(<-answered, <-answered); err != nil || p.leads(t) != firstHost {
				t.Errorf("%v, at %s", err, p.leads(t))
			}
		})
	}
}

// Nobody asks over the connection that listens: it is left together with one of the pool.
func TestASilentConnectionThatOnlyListensIsLeftWithOthers(t *testing.T) {
	t.Parallel()
	p := startPair(t, firstHost)
	listens := must.Get(p.Listen(t.Context()))(t)
	p.idle(t, 1)
	p.fall(t)
	ctx, cancel := context.WithTimeout(t.Context(), protocol.Patience)
	defer cancel()
	if err := p.Query(ctx, protocol.Step{SQL: "select 1"}); !protocol.ConnectionLost(err) {
		t.Errorf("%v, want a lost connection", err)
	}
	if _, _, err := listens.Next(ctx); err == nil || errors.Is(err, listener.ErrQuiet) {
		t.Errorf("%v, want that it is lost", err)
	}
}

// held is a connection that hears nothing until it is let go.
type held struct {
	net.Conn
	holds *atomic.Bool
	letGo <-chan struct{}
}

func (h held) Read(b []byte) (int, error) {
	if h.holds.Load() {
		<-h.letGo
	}
	return h.Conn.Read(b)
}

// leaves is called when somebody leaves the pool without a connection.
type leaves func()

func (leaves) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (leaves) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (leaves) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return ctx
}

func (l leaves) TraceAcquireEnd(_ context.Context, _ *pgxpool.Pool, end pgxpool.TraceAcquireEndData) {
	if end.Err != nil {
		l()
	}
}

// The pool asks an idle connection whether it works, and the answer comes after its caller has left: the pool keeps the
// connection.
func TestWhoHasLittleTimeClosesNoConnectionOfThePool(t *testing.T) {
	t.Parallel()
	for who, ask := range map[string]func(*Server, context.Context) error{
		"a release, which takes another": func(s *Server, ctx context.Context) error {
			_, err := s.Release(ctx, protocol.Claim{Name: "report", Token: 1, GrantID: uuid.New()}, false)
			return err
		},
		"a call whose context ends": func(s *Server, ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if err := s.Query(ctx, protocol.Step{SQL: "select 1"}); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("%v, want the end of the context", err)
			}
			return nil
		},
	} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			var holds, dialled atomic.Bool
			answers := make(chan struct{})
			letGo := sync.OnceFunc(func() { close(answers) })
			pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) {
				c.MaxConns = 2
				c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return holds.Load() }
				c.ConnConfig.Tracer = leaves(letGo)
				c.ConnConfig.DialFunc = func(ctx context.Context, network, to string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, to)
					if err != nil || dialled.Swap(true) {
						return conn, err
					}
					return held{conn, &holds, answers}, nil
				}
			})
			t.Cleanup(letGo)
			s := New(pool, "pglock", nil, errors.New("closed"))
			t.Cleanup(s.Close)
			must.Do(t, pool.Ping(t.Context()))
			holds.Store(true)
			must.Note(t, ask(s, t.Context()))
			pgtest.Eventually(t, "the pool has its answer", func() bool { return pool.Stat().AcquiredConns() == 0 })
			if now := pool.Stat(); now.TotalConns() != 1 || now.NewConnsCount() != 1 {
				t.Errorf("the pool has %d connections and has opened %d, want the first", now.TotalConns(),
					now.NewConnsCount())
			}
		})
	}
}

// Over a network on which every answer takes longer than a second, too, the pool keeps a connection that it asks for
// somebody who has little time, and one that serves a step aside.
func TestASlowNetworkClosesNoConnectionOfThePool(t *testing.T) {
	t.Parallel()
	p := startPair(t, firstHost)
	p.idle(t, 1)
	query := func(ctx context.Context) error { return p.Query(ctx, protocol.Step{SQL: "select 1"}) }
	must.Do(t, query(t.Context()))
	p.late.Store(true)
	for range 6 { // until it counts
		must.Do(t, query(t.Context()))
	}
	before := p.pool.Stat()
	must.Note(t, p.Aside(t.Context(), protocol.Step{SQL: "select 2"}))
	p.asks.Store(true)
	brief, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := query(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the end of the context", err)
	}
	pgtest.Eventually(t, "the pool has its answer", func() bool { return p.pool.Stat().AcquiredConns() == 0 })
	if now := p.pool.Stat(); now.TotalConns() != before.TotalConns() || now.NewConnsCount() != before.NewConnsCount() {
		t.Errorf("the pool has %d connections and has opened %d, want %d and %d", now.TotalConns(),
			now.NewConnsCount(), before.TotalConns(), before.NewConnsCount())
	}
	must.Do(t, query(t.Context())) // whoever has the time is served
}

// A statement may have waited for a lock, or several for the same stalled standby. While the leader goes is no time to
// wait longer than usual.
func TestASlowAnswerIsNoSlowNetwork(t *testing.T) {
	t.Parallel()
	var p pace
	now := time.Now()
	answered := func(took ...time.Duration) { // to statements that were sent together
		for _, one := range took {
			p.note(now, now.Add(one))
		}
		now = now.Add(slices.Max(took))
	}
	allows := func(when string, want time.Duration) {
		t.Helper()
		if got := p.allow(pooledNext); got != want {
			t.Errorf("%s the limit is %v, want %v", when, got, want)
		}
	}
	const quick, slow = time.Millisecond, 8 * time.Second
	answered(quick)
	answered(slow)
	allows("after a slow answer", pooledNext)
	answered(quick)
	answered(slow, slow, slow, slow, slow)
	allows("after slow answers at the same time", pooledNext)
	answered(slow)
	answered(slow)
	allows("before the last of several in a row", pooledNext)
	answered(time.Second)
	allows("after several in a row", 3*time.Second)
	answered(quick)
	allows("after a quick answer", pooledNext)
	for range inARow {
		answered(slow)
	}
	allows("over a network that is too slow", allowed)
}
