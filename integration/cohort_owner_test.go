package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// longTurns lets a block last as long as a busy machine needs to pass a turn on; then its line asks for the next.
var longTurns = pglock.WithTurns(pglock.DefaultTurns, 3*time.Second)

// waysOfTurns are how a call gets its lease from a line: passed on in memory, as the first turn of a block, or alone.
var waysOfTurns = map[string]func(t *testing.T, look *peer, c *pglock.Client, name string) (*pglock.Lease, chan fetched){
	"passed on": func(t *testing.T, look *peer, c *pglock.Client, name string) (*pglock.Lease, chan fetched) {
		_, now, got := passedOn(t, look, c, name, 1)
		return now, got
	},
	"first of a block": firstOfItsGrant,
	"alone": func(t *testing.T, look *peer, c *pglock.Client, name string) (*pglock.Lease, chan fetched) {
		// Others draw tokens all the time: no number follows the one before.
		look.change(t, "draw_tokens", "p_turns - 1", "0 * (p_turns - 1)") // as often as it is said
		return firstOfItsGrant(t, look, c, name)
	},
}

// firstOfItsGrant gives the lease of the first call that is served from a ticket of the line, while another waits.
func firstOfItsGrant(t *testing.T, look *peer, c *pglock.Client, name string) (*pglock.Lease, chan fetched) {
	t.Helper()
	held := mustTry(t, c, name)
	got := make(chan fetched, 3)
	for n := range 3 {
		acquireInBackground(t.Context(), c, n, name, got)
		awaitQueue(t, look, name, min(n+1, 2))
	}
	time.Sleep(20 * time.Millisecond) // for the third to come into the line
	mustRelease(t, held)
	serve(t, got, 1)
	f := await(t, got)
	if f.err != nil {
		t.Fatal(f.err)
	}
	return f.lease, got
}

// A call under the context of a turn is its owner's: what it holds is refused to it at once, also to its calls of other
// clients.
func TestOwnerOfATurnThatAsksForItsOwnLockIsToldAtOnce(t *testing.T) {
	t.Parallel()
	for way, take := range waysOfTurns {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			c, other := newClient(t, db.Pool(t), longTurns), newClient(t, db.Pool(t), longTurns)
			for what, ask := range map[string]func(ctx context.Context, name string) error{
				"Acquire": func(ctx context.Context, name string) error {
					_, err := c.Acquire(ctx, name, pglock.WithMaxWait(patience/4))
					return err
				},
				"TryAcquire": func(ctx context.Context, name string) error { _, err := c.TryAcquire(ctx, name); return err },
				"AcquireAll": func(ctx context.Context, name string) error {
					_, err := c.AcquireAll(ctx, []string{"free", name}, pglock.WithMaxWait(patience/4))
					return err
				},
				"Acquire of another client": func(ctx context.Context, name string) error {
					_, err := other.Acquire(ctx, name, pglock.WithMaxWait(patience/4))
					return err
				},
			} {
				l, got := take(t, look, c, what)
				if err := ask(l.Context(), what); !errors.Is(err, pglock.ErrSelfDeadlock) {
					t.Errorf("%s: %v, want ErrSelfDeadlock", what, err)
				}
				mustRelease(t, l)
				serve(t, got, 1)
			}
			wantFree(t, look)
		})
	}
}

// Two owners hold a turn each and ask for each other's lock. The circle is found within a second, and when the owner
// that gets the error lets go, the other continues. Those that wait in the lines are served.
func TestCircleOfTurnsIsFoundWithinASecond(t *testing.T) {
	t.Parallel()
	for way, take := range waysOfTurns {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			a, b := newClient(t, db.Pool(t), longTurns, pglock.WithDefaultHolder("a")), newClient(t, db.Pool(t), longTurns, pglock.WithDefaultHolder("b"))
			x, behindX := take(t, look, a, "x")
			y, behindY := take(t, look, b, "y")
			awaitQueue(t, look, "y", 1)
			second := make(chan fetched, 1)
			acquireInBackground(x.Context(), a, 0, "y", second)
			awaitQueue(t, look, "y", 2)
			began := time.Now()
			_, err := b.Acquire(y.Context(), "x", pglock.WithMaxWait(patience))
			took := time.Since(began)
			var deadlock *pglock.DeadlockError
			if !errors.Is(err, pglock.ErrDeadlock) || !errors.As(err, &deadlock) || took > 5*time.Second {
				t.Fatalf("%v after %v, want ErrDeadlock", err, took)
			}
			t.Logf("found after %v: %v", took, err)
			mustRelease(t, y)
			serve(t, behindY, 1) // before a in the queue
			f := await(t, second)
			if f.err != nil {
				t.Fatal(f.err)
			}
			mustRelease(t, f.lease, x)
			serve(t, behindX, 1)
			wantFree(t, look)
		})
	}
}

// Owners of turns hold one lock and ask for the next, always upwards, and go on holding the second when the first turn has
// ended: no circle closes, and none is seen. The turns that nobody asked from pass on in memory.
func TestTurnsThatEndedRaiseNoAlarm(t *testing.T) {
	inLongTier(t)
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	until := time.Now().Add(1200 * time.Millisecond)
	if testing.Short() {
		until = time.Now().Add(700 * time.Millisecond)
	}
	var wg sync.WaitGroup
	for range 2 {
		c := newClient(t, db.Pool(t, maxConnections(6)))
		for caller := range 12 {
			wg.Go(func() {
				for n := caller; time.Now().Before(until); n++ {
					name := fmt.Sprint("x", n%3)
					first, err := c.Acquire(t.Context(), name)
					if err != nil {
						t.Error(err)
						return
					}
					if n%4 != 0 {
						mustRelease(t, first)
						continue
					}
					under := context.WithoutCancel(first.Context())
					second, err := c.Acquire(under, fmt.Sprint("x", n%3+1), pglock.WithMaxWait(patience))
					if err != nil {
						t.Errorf("%s and the next: %v", name, err)
						mustRelease(t, first)
						return
					}
					mustRelease(t, first)
					if n%3+1 < 3 { // the same owner, that holds only the second now
						third, err := c.Acquire(under, "x3", pglock.WithMaxWait(patience))
						if err != nil {
							t.Errorf("after the first turn has ended: %v", err)
						} else {
							mustRelease(t, third)
						}
					}
					mustRelease(t, second)
				}
			})
		}
	}
	wg.Wait()
	wantFree(t, look)
}
