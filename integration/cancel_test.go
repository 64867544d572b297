package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A waiter that leaves while the release hands the lock to it: whichever comes first, nobody is left holding the lock
// without knowing. The leave that comes second finds the grant, and gives it to the next in the queue; the release that
// comes second passes over the ticket, and waits for nobody.
func TestLeaveAgainstGrant(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"grant", "leave"} {
		t.Run(first+" first", func(t *testing.T) {
			db := pgtest.Database(t)
			look, holder, waiter, next := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t,
				db.URL())
			held := holder.mustAcquire(t, "x", time.Minute)
			w, err := waiter.enqueue(t.Context(), "x", uuid.New(), "exclusive", nil)
			if err != nil {
				t.Fatal(err)
			}
			n, err := next.enqueue(t.Context(), "x", uuid.New(), "exclusive", nil)
			if err != nil {
				t.Fatal(err)
			}
			patientWaits(t, look)
			grants := func(p *peer) error {
				_, err := p.Exec(t.Context(), `SELECT pglock.release_lease('x', $1, $2)`, held.token, held.id.String())
				return err
			}
			leaves := func(p *peer) error {
				_, err := p.Exec(t.Context(), `SELECT pglock.give_up(gen_random_uuid(), '{x}', ARRAY[$1::uuid])`,
					w.id.String())
				return err
			}
			done := make(chan error, 1)
			if first == "grant" {
				holder.exec(t, "BEGIN")
				if err := grants(holder); err != nil {
					t.Fatal(err)
				}
				go func() { done <- leaves(waiter) }()
				waiter.awaitBlocked(t, look)
				holder.exec(t, "COMMIT")
			} else { // whoever serves the queue passes over the ticket
				waiter.exec(t, "BEGIN")
				if err := leaves(waiter); err != nil {
					t.Fatal(err)
				}
				done <- grants(holder)
				waiter.exec(t, "COMMIT")
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if id := one[string](t, look,
				`SELECT grant_id::text FROM pglock.locks WHERE name = 'x' AND expires_at > clock_timestamp()`); id != n.id.String() {
				t.Error("the next in the queue does not hold the lock")
			}
			if n := one[int](t, look, `SELECT count(*) FROM pglock.waiters`); n != 0 {
				t.Errorf("%d tickets are left", n)
			}
		})
	}
}

// A request to wait that arrives after it was given up leaves no ticket, whichever of the two comes first.
func TestTrap9_LateTicketOfAnAbandonedRequestIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exclusive", "limit"} {
		t.Run(mode, func(t *testing.T) {
			db := pgtest.Database(t)
			look, waiter, abandons := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
			patientWaits(t, look)
			var capacity any
			if mode == "limit" {
				capacity = 1
			}
			if h, err := look.enqueue(t.Context(), "x", uuid.New(), mode, capacity); err != nil || !h.granted {
				t.Fatal(h, err)
			}
			id := uuid.New()
			waiter.exec(t, "BEGIN")
			if w, err := waiter.enqueue(t.Context(), "x", id, mode, capacity); err != nil || w.ticket == 0 {
				t.Fatal(w, err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := abandons.Exec(t.Context(),
					`SELECT ended FROM pglock.give_up(gen_random_uuid(), '{x}', ARRAY[$1::uuid], true)`, id.String())
				done <- err
			}()
			abandons.awaitBlocked(t, look)
			waiter.exec(t, "COMMIT")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if n := one[int](t, look, `SELECT count(*) FROM pglock.waiters`); n != 0 {
				t.Errorf("%d tickets are left", n)
			}
			if _, err := waiter.enqueue(t.Context(), "x", id, mode, capacity); state(err) != "LK008" {
				t.Errorf("the request again: %v, want LK008", err)
			}
			if n := one[int](t, look, `SELECT count(*) FROM pglock.waiters`); n != 0 {
				t.Errorf("%d tickets are left", n)
			}
		})
	}
}

// Calls that are cancelled at every moment of their wait, among others that are not: every error is the context's,
// nobody holds a lock without knowing, every queue is empty at the end, and the others are all served.
func TestTrap9_StormOfCancelledWaits(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	const locks = 4
	calls := 30 * rounds(20)
	wg := pgtest.Group(t)
	var cancelled, served atomic.Int32
	for n := range 3 {
		c := newClient(t, db.Pool(t, maxConnections(8)))
		for m := range calls / 3 / 10 {
			wg.Go(func() {
				for round := range 10 {
					ctx, cancel := context.WithCancel(t.Context())
					if (n+m+round)%2 == 0 {
						time.AfterFunc(rand.N(20*time.Millisecond), cancel) // the chaos of this test
					}
					l, err := c.Acquire(ctx, fmt.Sprint("x", (m+round)%locks))
					switch {
					case err == nil:
						served.Add(1)
						if err := l.Release(ctx); err != nil &&
							!(errors.Is(err, context.Canceled) && ctx.Err() != nil) {
							t.Error(err) // where ctx ends meanwhile, the client goes on telling the server
						}
					case errors.Is(err, context.Canceled) && ctx.Err() != nil:
						cancelled.Add(1)
					default:
						t.Error(err)
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	pgtest.Eventually(t, "every queue to be empty and every lock free", func() bool {
		return one[int](t, look,
			`SELECT (SELECT count(*) FROM pglock.waiters) + (SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp())`) == 0
	})
	t.Logf("%d served, %d cancelled, %d grants", served.Load(), cancelled.Load(), checkGrants(t, look))
	if int(served.Load()) < calls/2 || int(cancelled.Load()) < calls/20 {
		t.Error("too little happened to show anything")
	}
}

// Close ends waits with ErrClosed and leaves their queues at once; the next in line is not kept waiting.
func TestCloseLeavesTheQueues(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	a, b := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	holder := mustTry(t, newClient(t, db.Pool(t)), "x")
	got := make(chan fetched, 3)
	acquireInBackground(t.Context(), a, 0, "x", got)
	awaitQueue(t, look, "x", 1)
	acquireInBackground(t.Context(), a, 1, "x", got)
	awaitQueue(t, look, "x", 2)
	acquireInBackground(t.Context(), b, 2, "x", got)
	awaitQueue(t, look, "x", 3)
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if f := await(t, got); f.n == 2 || !errors.Is(f.err, pglock.ErrClosed) {
			t.Errorf("%d: %v, want ErrClosed", f.n, f.err)
		}
	}
	awaitQueue(t, look, "x", 1)
	mustRelease(t, holder)
	if f := await(t, got); f.n != 2 || f.err != nil {
		t.Errorf("%d: %v", f.n, f.err)
	}
}
