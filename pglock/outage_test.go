package pglock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// refusing is how long a server takes to refuse a connection.
const refusing = 5 * time.Millisecond

// way leads to the server until it is cut. It counts how often somebody wants to go there then.
type way struct {
	mu      sync.Mutex
	isCut   bool
	late    bool  // where it ends is a hook of the pool
	says    error // to who comes; nil: nobody listens
	refused int
	conns   []net.Conn
}

func (w *way) over(c *pgxpool.Config) {
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.late {
			if err := w.refuse(); err != nil {
				return nil, err
			}
		}
		conn, err := dial(ctx, network, address)
		if err == nil {
			w.conns = append(w.conns, conn)
		}
		return conn, err
	}
}

// refuse refuses who comes while the way is cut. The mutex is held.
func (w *way) refuse() error {
	if !w.isCut {
		return nil
	}
	w.refused++
	w.mu.Unlock()
	time.Sleep(refusing)
	w.mu.Lock()
	return cmp.Or(w.says, error(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}))
}

// hook is one of the pool's, and refuses who comes.
func (w *way) hook() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refuse()
}

// fill cuts the way for those who come.
func (w *way) fill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
}

func (w *way) cut(cut bool) (refused int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.isCut = cut; cut && len(w.conns) > 0; w.conns = w.conns[1:] {
		_ = w.conns[0].Close()
	}
	return w.refused
}

// Fifty calls of each kind while the server refuses connections. They ask for one together, also where the pool has no
// room for another attempt; the heartbeat and whoever listens ask beside them.
func TestAServerThatRefusesConnectionsIsNotAskedByEveryCall(t *testing.T) {
	for name, over := range map[string]func(*way, *pgxpool.Config){
		"a pool of four": func(w *way, c *pgxpool.Config) { c.MaxConns = 4; w.over(c) },
		"a pool of one":  func(w *way, c *pgxpool.Config) { c.MaxConns = 1; w.over(c) },
		"no token for a login": func(w *way, c *pgxpool.Config) {
			c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return w.hook() }
			w.over(c)
		},
		"a hook that refuses logins": func(w *way, c *pgxpool.Config) {
			c.AfterConnect = func(context.Context, *pgx.Conn) error { return w.hook() }
			w.late = true
			w.over(c)
		},
	} {
		t.Run(name, func(t *testing.T) { refuseCalls(t, over) })
	}
}

func refuseCalls(t *testing.T, over func(*way, *pgxpool.Config)) {
	db := pgtest.Parallel(t)
	w := new(way)
	c := startClient(t, db.Pool(t, func(c *pgxpool.Config) { over(w, c) }))
	const calls, outage = 50, 2 * time.Second
	var leases []*pglock.Lease
	for i := range calls {
		leases = append(leases, mustAcquire(t, c, fmt.Sprint("held ", i), pglock.WithTTL(time.Hour)))
	}
	w.cut(true)
	var ended, tries sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), outage)
	defer cancel()
	for i, l := range leases {
		ended.Go(func() {
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("release when the server is back: %v", err)
			}
		})
		ended.Go(func() {
			if _, err := c.Acquire(t.Context(), fmt.Sprint("free ", i), pglock.WithTTL(time.Hour)); err != nil {
				t.Errorf("acquire when the server is back: %v", err)
			}
		})
		for _, kind := range [][]pglock.AcquireOption{nil, {pglock.WithSubtree()}} {
			tries.Go(func() {
				for ctx.Err() == nil {
					if _, err := c.TryAcquire(ctx, fmt.Sprint("tried ", i), kind...); err == nil {
						t.Error("the server refuses connections, and grants a lock")
					}
				}
			})
		}
	}
	tries.Wait()
	if n := w.cut(false); n < 5 || n > 250 { // the first tries, and some twenty a second
		t.Errorf("the server was asked for a connection %d times in %v", n, outage)
	}
	ended.Wait()
}

// A node is drained while the server restarts: Close says its last words when the server is back, and asks little.
func TestACloseInAnOutageAsksWithPauses(t *testing.T) {
	db := pgtest.Parallel(t)
	w := new(way)
	c := startClient(t, db.Pool(t, w.over))
	mustAcquire(t, c, "held", pglock.WithTTL(time.Hour))
	w.cut(true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	if n := w.cut(false); n < 3 || n > 25 {
		t.Errorf("the server was asked for a connection %d times", n)
	}
}

// The session ends by itself: nobody waits for a server that starts.
func TestACloseWithoutLeasesWaitsForNoServer(t *testing.T) {
	db := pgtest.Parallel(t)
	w := &way{says: &pgconn.PgError{Severity: "FATAL", Code: "57P03", Message: "the database system is starting up"}}
	c := startClient(t, db.Pool(t, w.over))
	must.Do(t, mustAcquire(t, c, "released", pglock.WithSubtree()).Release(t.Context()))
	w.cut(true)
	must.Do(t, c.Close(t.Context()))
	if n := w.cut(false); n < 1 || n > 4 {
		t.Errorf("the server was asked for a connection %d times", n)
	}
}

// A server without a free slot takes none for a release: the client's own connection is open, and the pool's would be
// refused each time.
func TestCallsOfAFullServerUseTheOpenConnection(t *testing.T) {
	db := pgtest.Parallel(t)
	w := &way{says: &pgconn.PgError{Severity: "FATAL", Code: "53300", Message: "sorry, too many clients already"}}
	pool := db.Pool(t, w.over)
	c := startClient(t, pool)
	var leases []*pglock.Lease
	for i := range 100 {
		leases = append(leases, mustAcquire(t, c, fmt.Sprint("held ", i), pglock.WithTTL(time.Hour)))
	}
	must.Get(leases[0].Extend(t.Context(), 2*time.Hour))(t) // the own connection is open
	pool.Reset()
	w.fill()
	for _, l := range leases {
		must.Do(t, l.Release(t.Context()))
	}
	if n := w.cut(false); n < 1 || n > 10 {
		t.Errorf("the server was asked for a connection %d times", n)
	}
}

// A hook that wants the values of one call would refuse the connections of others, who wait for the same attempt.
func TestNoHookOfThePoolSeesTheValuesOfACall(t *testing.T) {
	type key struct{}
	var seen atomic.Int32
	look := func(ctx context.Context) {
		if ctx.Value(key{}) != nil {
			seen.Add(1)
		}
	}
	c := startClient(t, pgtest.Parallel(t).Pool(t, func(c *pgxpool.Config) {
		c.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error { look(ctx); return nil }
		c.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) { look(ctx); return true, nil }
	}))
	ctx := context.WithValue(t.Context(), key{}, true)
	for name, opts := range map[string][]pglock.AcquireOption{"plain": nil, "tree": {pglock.WithSubtree()}} {
		l := must.Get(c.Acquire(ctx, name, opts...))(t)
		must.Get(l.Check(ctx))(t)
		must.Do(t, l.Release(ctx))
	}
	for range c.Watch(ctx, "plain") {
		break
	}
	mustAcquire(t, c, "kept")
	must.Do(t, c.Close(ctx))
	if n := seen.Load(); n > 0 {
		t.Errorf("hooks saw the values of calls %d times", n)
	}
}

// The application may have opened the pool's connections since: nobody else has told that the server takes them again.
func TestATryUsesTheOpenConnectionOfAnExhaustedPoolAlsoAfterARefusal(t *testing.T) {
	w := new(way)
	pool := pgtest.Parallel(t).Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2; w.over(c) })
	c := startClient(t, pool)
	must.Get(mustAcquire(t, c, "held", pglock.WithTTL(time.Hour)).Extend(t.Context(), 2*time.Hour))(t) // opens it
	held := must.Get(pool.Acquire(t.Context()))(t)
	defer held.Release()
	for _, idle := range pool.AcquireAllIdle(t.Context()) {
		_ = idle.Conn().Close(t.Context())
		idle.Release()
	}
	w.fill()
	if _, err := c.TryAcquire(t.Context(), "refused", pglock.WithMaxWait(time.Second)); err == nil {
		t.Error("a lock without a connection")
	}
	w.cut(false)
	other := must.Get(pool.Acquire(t.Context()))(t)
	defer other.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	must.Get(c.TryAcquire(ctx, "free"))(t)
}
