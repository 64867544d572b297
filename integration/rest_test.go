package integration

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A look tells which ticket was served last, so whoever looks twice knows whether the queue has moved.
func TestI8_ALookTellsWhetherTheQueueMoves(t *testing.T) {
	t.Parallel()
	p := newHastyPeer(t, pgtest.Database(t).URL())
	holder := p.mustAcquire(t, "x", time.Hour)
	first := p.party("first", "exclusive", time.Minute).mustQueue(t, "x")
	second := p.party("second", "exclusive", time.Minute).mustQueue(t, "x")
	served := func() int64 {
		return one[int64](t, p, `SELECT served FROM pglock.look($1, $2, '1 min')`, second.key, second.label)
	}
	before := served()
	first.look(t)
	if again := served(); again != before || again >= first.ticket {
		t.Errorf("I8: served are tickets up to %d, then up to %d, while ticket %d waits", before, again, first.ticket)
	}
	if released, err := p.release(t.Context(), holder); err != nil || !released {
		t.Fatalf("released: %v, %v", released, err)
	}
	if after := served(); after != first.ticket {
		t.Errorf("I8: served are tickets up to %d after ticket %d was", after, first.ticket)
	}
}

// restingConn is a client's. It counts the client when it first tells the server that it listens no more.
type restingConn struct {
	net.Conn
	told *atomic.Bool
	rest *atomic.Int64
}

func (c restingConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("UNLISTEN *")) && c.told.CompareAndSwap(false, true) {
		c.rest.Add(1)
	}
	return c.Conn.Write(b)
}

// Behind a lock that is held for long all but the first two waiters stop listening, and go on looking. When the queue
// begins to move, faster than they look, all of them are served in the order of their tickets.
func TestI8_AQueueThatBeginsToMoveWakesThoseThatRest(t *testing.T) {
	pgtest.Long(t, "TestI8_ALookTellsWhetherTheQueueMoves", "TestI9_WaitersAreServedInTicketOrder")
	db := pgtest.Parallel(t)
	look, stood := newPeer(t, db.URL()), time.Now()
	holder := must.Get(newClient(t, db.Pool(t)).Acquire(t.Context(), "leader"))(t)
	const waiters, first, far = 24, 2, 8
	var rest atomic.Int64 // clients that have told their server to listen no more
	resting := func(c *pgxpool.Config) {
		dial, told := c.ConnConfig.DialFunc, new(atomic.Bool)
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return restingConn{conn, told, &rest}, err
		}
	}
	got, group := make(chan fetched, waiters), pgtest.Group(t)
	for n := range waiters {
		c := newClient(t, db.Pool(t, resting))
		group.Go(func() {
			l, err := c.Acquire(t.Context(), "leader", pglock.WithTTL(time.Minute))
			got <- fetched{n, l, err}
			if err == nil {
				err = l.Release(t.Context())
			}
			if err != nil {
				t.Error(n, err)
			}
		})
		awaitQueue(t, look, "leader", n+1)
	}
	time.Sleep(30 * time.Second) // for how long a listener goes on for nobody
	pgtest.Eventually(t, "all but the first two to rest", func() bool { return rest.Load() >= waiters-first })
	time.Sleep(6 * time.Second) // a look of everybody
	if n := rest.Load(); n != waiters-first {
		t.Errorf("I8: %d rest, want %d", n, waiters-first)
	}
	must.Do(t, holder.Release(t.Context()))
	began, longest := time.Now(), time.Duration(0)
	for n, last := 0, began; n < waiters; n++ {
		if f := await(t, got); f.n != n {
			t.Errorf("I9: waiter %d was served as number %d", f.n, n)
		}
		most := time.Second
		if n >= far {
			most = began.Sub(stood) / 10
		}
		if waited := time.Since(last); waited > most+4*time.Second {
			t.Errorf("I8: waiter %d was served after %v, want %v at most", n, waited, most)
		}
		longest, last = max(longest, time.Since(last)), time.Now()
	}
	group.Wait()
	t.Logf("%d waiters of which %d rested were served within %v, at most %v one after the other",
		waiters, waiters-first, time.Since(began), longest)
}
