package pglock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

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
	says    error // to those; nil: nobody listens
	refused int
	conns   []net.Conn
}

func (w *way) over(c *pgxpool.Config) {
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.isCut {
			w.refused++
			w.mu.Unlock()
			time.Sleep(refusing)
			w.mu.Lock()
			return nil, cmp.Or(w.says, error(&net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}))
		}
		conn, err := dial(ctx, network, address)
		if err == nil {
			w.conns = append(w.conns, conn)
		}
		return conn, err
	}
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
	for name, pool := range map[string]func(*pgxpool.Config){
		"a pool of four": func(c *pgxpool.Config) { c.MaxConns = 4 },
		"a pool of one":  func(c *pgxpool.Config) { c.MaxConns = 1 },
	} {
		t.Run(name, func(t *testing.T) { refuseCalls(t, pool) })
	}
}

func refuseCalls(t *testing.T, pool func(*pgxpool.Config)) {
	db := pgtest.Parallel(t)
	w := new(way)
	c := startClient(t, db.Pool(t, pool, w.over))
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
	if n := w.cut(false); n < 5 || n > 200 { // the first try of each kind, and some twenty a second
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
