package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// Whatever a process does, max_connections has to count one connection for it besides its pool: it listens, looks and
// renews over the same one, which it opens once. Where a statement takes long, as on a busy machine, others go beside
// it for a moment; so this may be tried again.
func TestAProcessOpensOneConnectionBesideItsPool(t *testing.T) {
	t.Parallel()
	for attempt := 1; ; attempt++ {
		opened, polling := openedBy(t)
		if opened == 2 && polling == 0 { // one by the pool
			return
		}
		if t.Logf("%d connections were opened, with that of the pool; %d times it did not hear", opened,
			polling); attempt == 5 {
			t.Fatal("want 2, and that it always hears")
		}
	}
}

// openedBy tells how many connections a process with a pool of one opens that holds a lease and renews it, watches a
// lock, and waits for that lock twenty times.
func openedBy(t *testing.T) (opened, polling int64) {
	db := pgtest.Database(t)
	var dials, renewals, polls atomic.Int64
	pool := db.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { dials.Add(1); return nil }
	})
	must.Do(t, pool.Ping(t.Context()))
	holder, look := newClient(t, db.Pool(t)), newPeer(t, db.URL())
	held := must.Get(holder.Acquire(t.Context(), "x"))(t)
	c := newClient(t, pool, pglock.WithObserver(pglock.ObserverFunc(func(_ context.Context, e pglock.Event) {
		switch e.Kind {
		case pglock.EventRenew:
			renewals.Add(1)
		case pglock.EventPolling:
			polls.Add(1)
		}
	})))
	work := pgtest.Group(t)
	watching, end := context.WithCancel(t.Context())
	work.Go(func() {
		for range c.Watch(watching, "x") { //nolint:revive // until the end
		}
	})
	own, err := c.Acquire(t.Context(), "y", pglock.WithTTL(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	turns := make(chan struct{})
	work.Go(func() {
		for range turns {
			lease, err := c.Acquire(t.Context(), "x")
			if err == nil {
				err = lease.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	over := sync.OnceFunc(func() { close(turns) })
	defer over()
	for range 20 {
		turns <- struct{}{}
		awaitQueue(t, look, "x", 1)
		must.Do(t, held.Release(t.Context()))
		if held, err = holder.Acquire(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Eventually(t, "three renewals", func() bool { return renewals.Load() >= 3 || own.Err() != nil })
	over()
	end()
	work.Wait()
	if err := own.Release(t.Context()); err != nil && own.Err() == nil {
		t.Error(err)
	}
	return dials.Load(), polls.Load()
}

// What is sent to a client arrives in its order, and only there, while statements go over the same connection one after
// the other; whatever the application does with its own notifications, and with contexts that end.
func TestNotificationsComeBetweenStatements(t *testing.T) {
	db := pgtest.Parallel(t)
	var stray atomic.Int64
	pool := db.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { stray.Add(1) }
		c.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
		}
	})
	s := server.New(pool, "pglock", nil, errors.New("closed"))
	defer s.Close()
	who := protocol.Session{Key: uuid.New(), Holder: "somebody", TTL: time.Minute}
	renew := func() error {
		claims := []protocol.Claim{{Name: "x", Token: 1, GrantID: uuid.New()}}
		_, err := s.RenewAll(t.Context(), time.Minute, who, claims)
		return err
	}
	conn, err := s.Listen(t.Context())
	if err == nil {
		err = errors.Join(conn.Subscribe(t.Context(), "a", "b"), renew())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(true)
	sender := newPeer(t, db.URL())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for round := range 200 {
		statement := make(chan error)
		go func() { statement <- renew() }()
		for n, channel := range []string{"a", "b"} {
			sent := fmt.Sprint(round, n)
			sender.exec(t, "SELECT pg_notify($1, $2)", channel, sent)
			if on, payload, err := conn.Next(ctx); err != nil || on != channel || payload != sent {
				t.Fatalf("%q on %q: %q on %q, %v", sent, channel, payload, on, err)
			}
		}
		must.Do(t, <-statement)
	}
	if n := stray.Load(); n > 0 {
		t.Errorf("%d notifications came to the application", n)
	}
	if err := renew(); err != nil { // without a notification that ends the waiting for one
		t.Fatal(err)
	}
	sender.exec(t, "SELECT pg_notify('a', 'last')")
	if _, payload, err := conn.Next(ctx); err != nil || payload != "last" {
		t.Errorf("after a statement that came while nothing was told: %q, %v; want the same connection", payload, err)
	}
	brief, cancel := context.WithCancel(t.Context())
	cancel()
	if _, payload, err := conn.Next(brief); !errors.Is(err, listener.ErrQuiet) {
		t.Errorf("afterwards: %q, %v", payload, err)
	}
}

// A client listens whatever the session's settings are.
func TestAClientListensWithOddSettings(t *testing.T) {
	db := pgtest.Parallel(t)
	for _, settings := range []map[string]string{
		{"client_encoding": "LATIN1"}, {"client_encoding": "SQL_ASCII"}, {"standard_conforming_strings": "off"},
	} {
		pool := db.Pool(t, func(c *pgxpool.Config) { maps.Copy(c.ConnConfig.RuntimeParams, settings) })
		s := server.New(pool, "pglock", nil, errors.New("closed"))
		conn, err := s.Listen(t.Context())
		if err == nil {
			err = conn.Subscribe(t.Context(), "a")
		}
		if err != nil {
			t.Errorf("%v: %v", settings, err)
		} else {
			newPeer(t, db.URL()).exec(t, "SELECT pg_notify('a', 'x')")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, payload, err := conn.Next(ctx); payload != "x" {
				t.Errorf("%v: %q, %v", settings, payload, err)
			}
			conn.Close(true)
		}
		s.Close()
	}
}

// The connection is lost while nobody uses it: whoever listens hears of that at once, and the next statement goes over
// a new one.
func TestALostConnectionIsNoticedWhileNobodyUsesIt(t *testing.T) {
	db := pgtest.Parallel(t)
	s := server.New(db.Pool(t), "pglock", nil, errors.New("closed"))
	defer s.Close()
	conn, err := s.Listen(t.Context())
	if err == nil {
		err = conn.Subscribe(t.Context(), "a")
	}
	if err != nil {
		t.Fatal(err)
	}
	look := newPeer(t, db.URL())
	own := func(sql string) int {
		return one[int](t, look, sql+" FROM pg_stat_activity WHERE datname = current_database() AND application_name "+
			"LIKE 'pglock %'")
	}
	if n := own("SELECT count(pg_terminate_backend(pid))"); n != 1 {
		t.Fatalf("%d connections beside the pool", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, _, err := conn.Next(ctx); !protocol.ConnectionLost(err) || errors.Is(err, listener.ErrQuiet) {
		t.Errorf("the listener hears %v", err)
	}
	conn.Close(false)
	who := protocol.Session{Key: uuid.New(), Holder: "somebody", TTL: time.Minute}
	if _, err := s.Look(t.Context(), time.Minute, who, nil); err != nil {
		t.Errorf("the next statement: %v", err)
	}
	if n := own("SELECT count(*)"); n != 1 {
		t.Errorf("%d connections beside the pool", n)
	}
}

// A connection that works and brings no notifications, as on a way that lets them not pass, is closed; one that nobody
// listens over any more stays for the heartbeat, and brings nothing.
func TestAConnectionThatBringsNothingIsReplaced(t *testing.T) {
	db := pgtest.Parallel(t)
	s := server.New(db.Pool(t), "pglock", nil, errors.New("closed"))
	defer s.Close()
	look := newPeer(t, db.URL())
	listen := func() listener.Conn {
		t.Helper()
		conn, err := s.Listen(t.Context())
		if err == nil {
			err = conn.Subscribe(t.Context(), "a")
		}
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	own := func() int { // the process that serves what the client sends
		t.Helper()
		who := protocol.Session{Key: uuid.New(), Holder: "somebody", TTL: time.Minute}
		must.Get(s.Look(t.Context(), time.Minute, who, nil))(t)
		return one[int](t, look, `SELECT min(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'pglock %' HAVING count(*) = 1`)
	}
	conn, first := listen(), own()
	conn.Close(true)
	look.exec(t, "NOTIFY a, 'unheard'")
	if n := own(); n != first {
		t.Errorf("it was closed although it works: %d, then %d", first, n)
	}
	conn = listen()
	look.exec(t, "NOTIFY a, 'heard'")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, payload, err := conn.Next(ctx); payload != "heard" || err != nil {
		t.Errorf("heard %q, %v", payload, err)
	}
	conn.Close(false)
	if n := own(); n == first {
		t.Error("it was kept although it brings nothing")
	}
}

// undying is a way to the server that takes no deadlines, as some tunnels do. It counts those who wait there.
type undying struct {
	net.Conn
	waiting *atomic.Int64
}

func (u undying) Read(b []byte) (int, error) {
	u.waiting.Add(1)
	defer u.waiting.Add(-1)
	return u.Conn.Read(b)
}

func (undying) SetDeadline(time.Time) error      { return errors.New("deadline not supported") }
func (undying) SetReadDeadline(time.Time) error  { return errors.New("deadline not supported") }
func (undying) SetWriteDeadline(time.Time) error { return errors.New("deadline not supported") }

// A connection whose waiting cannot be interrupted is given up. Statements go over another one, and Close returns.
func TestAConnectionThatTakesNoDeadlinesIsGivenUp(t *testing.T) {
	db := pgtest.Parallel(t)
	var waiting atomic.Int64
	pool := db.Pool(t, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return undying{conn, &waiting}, err
		}
	})
	s := server.New(pool, "pglock", nil, errors.New("closed"))
	must.Get(s.Listen(t.Context()))(t)
	pgtest.Eventually(t, "somebody to wait for notifications", func() bool { return waiting.Load() == 1 })
	done := make(chan error, 1)
	pgtest.Group(t).Go(func() {
		who := protocol.Session{Key: uuid.New(), Holder: "somebody", TTL: time.Minute}
		claims := []protocol.Claim{{Name: "x", Token: 1, GrantID: uuid.New()}}
		_, err := s.RenewAll(t.Context(), time.Minute, who, claims)
		s.Close()
		done <- err
	})
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it hangs")
	}
}

// A call that waits for the application's pool for longer than its lease lasts gets a whole lease then.
func TestI7_TrustInAGrantBeginsWhenTheRequestIsSent(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	c := newClient(t, pool)
	const ttl = 3 * time.Second // in which a busy machine answers
	busy, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan fetched, 2)
	for n, name := range []string{"a", "b"} { // one that goes alone and, behind it, another
		acquireInBackground(t.Context(), c, n, name, got, pglock.WithTTL(ttl))
	}
	time.Sleep(ttl * 5 / 4) // for longer than the lease would last
	busy.Release()
	for range 2 {
		f := await(t, got)
		if f.err != nil {
			t.Errorf("I7: %v", f.err)
		} else if err := f.lease.Release(t.Context()); err != nil {
			t.Errorf("I7: release: %v", err)
		}
	}
}
