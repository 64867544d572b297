package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// Thousands of calls that wait for as many locks over four connections are cancelled at once, some queued, some under
// way and some not sent yet, and half of the locks are released at that moment. No lock is granted to a call that has
// returned for longer than it takes to give it back, no ticket and no goroutine stays, and Close finds nothing left to
// do, or says so.
func TestTrap9_ThousandsOfCancelledWaitsLeaveNothing(t *testing.T) {
	pgtest.Long(t, "TestTrap9_StormOfCancelledWaits")
	for _, closes := range []bool{false, true} {
		t.Run(map[bool]string{false: "and the client goes on", true: "and the client closes"}[closes],
			func(t *testing.T) {
				db := pgtest.Database(t)
				look, holder := newPeer(t, db.URL()), newPeer(t, db.URL())
				patientTransactions(t, look)                      // one ends thousands of leases
				names, ttl := inThousands(10_000), 10*time.Minute // what ends with its TTL ends too late for this test
				holder.exec(t,
					`SELECT pglock.acquire_lease('n' || n, gen_random_uuid(), $1, 'holder', '1 h') FROM generate_series(1, $2::int) n`, holder.key.String(), names)
				c := newClient(t, db.Pool(t, maxConnections(4)))
				goroutines := runtime.NumGoroutine()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				calls := pgtest.Group(t)
				for n := range names {
					calls.Go(func() {
						if l, err := c.Acquire(ctx, fmt.Sprint("n", n+1), pglock.WithTTL(ttl)); !errors.Is(err,
							context.Canceled) && err != nil {
							t.Error(err)
						} else if err == nil {
							must.Note(t, l.Release(t.Context()))
						}
					})
				}
				pgtest.Eventually(t, "a fifth of them to be queued", func() bool {
					return one[int](t, look, `SELECT count(*) FROM (SELECT FROM pglock.waiters LIMIT $1) w`,
						names/5) == names/5
				})
				cancel()
				began := time.Now()
				holder.exec(t,
					`SELECT pglock.release_lease(name, token, grant_id, 0) FROM pglock.locks WHERE holder = 'holder' AND token % 2 = 0`)
				calls.Wait()
				returned := time.Since(began)
				if closes {
					if err := c.Close(t.Context()); err != nil {
						t.Logf("Close after %v: %v", time.Since(began), err)
						return // it says what it could not do
					}
				}
				left := func() int {
					return one[int](t, look,
						`SELECT (SELECT count(*) FROM pglock.waiters) + (SELECT count(*) FROM pglock.locks WHERE holder <> 'holder' AND expires_at > clock_timestamp())`)
				}
				if closes {
					if n := left(); n != 0 {
						t.Errorf("Close answered nil, and %d tickets and leases are left", n)
					}
				}
				pgtest.Eventually(t, "all tickets and leases to be given back", func() bool { return left() == 0 })
				given := time.Since(began)
				pgtest.Eventually(t, "the goroutines to end", func() bool {
					return runtime.NumGoroutine() <= goroutines+10
				})
				t.Logf("all calls returned after %v, all was given back after %v, the goroutines had ended after %v",
					returned, given, time.Since(began))
			})
	}
}

// Close comes back, with every connection of the pool taken and calls under way that have no deadline of their own.
func TestCloseComesBackThoughThePoolIsTaken(t *testing.T) {
	db := pgtest.Database(t)
	pool := newPool(t, db.URL(), maxConnections(2))
	c := newClient(t, pool)
	var leases []*pglock.Lease
	for n := range 6 {
		leases = append(leases, mustTry(t, c, fmt.Sprint("x", n)))
	}
	for range 2 {
		conn := must.Get(pool.Acquire(t.Context()))(t)
		t.Cleanup(conn.Release) // before the pool closes
	}
	goroutines := runtime.NumGoroutine()
	checks := make(chan error, len(leases))
	for _, l := range leases {
		go func() {
			_, err := l.Check(context.Background())
			checks <- err
		}()
	}
	pgtest.Eventually(t, "the checks to be under way", func() bool {
		return runtime.NumGoroutine() >= goroutines+len(leases)
	})
	// by then those behind the first wait for a connection together, in a statement that is no single call's
	time.Sleep(2 * time.Second)
	closed := must.Go(func() error { return c.Close(context.Background()) })
	select {
	case <-closed:
	case <-time.After(2 * 5 * time.Second): // it promises five, and a busy machine needs longer
		t.Fatal("Close does not come back")
	}
	for range leases {
		select {
		case <-checks:
		case <-time.After(patience):
			t.Fatal("a check goes on after Close")
		}
	}
	pgtest.Eventually(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// Those who queue at once share the head in multixacts, of which a cluster has four thousand million members until
// VACUUM: a crowd uses one or two for each acquisition, and does not use more with each that comes.
func TestACrowdUsesFewMultixacts(t *testing.T) {
	pgtest.Long(t, "TestTheWorkGrowsWithWhatIsAskedFor")
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	members := func() int64 {
		look.exec(t, `CHECKPOINT`)
		return one[int64](t, look, `SELECT next_multi_offset::text::bigint FROM pg_control_checkpoint()`)
	}
	before := members()
	calls := pgtest.Group(t)
	const clients, callers, rounds = 8, 4, 10
	for range clients {
		c := newClient(t, newPool(t, server.URL(), maxConnections(4)))
		for n := range callers {
			calls.Go(func() {
				opts := [][]pglock.AcquireOption{nil, {pglock.WithShared()}, {pglock.WithLimit(2)}}[n%3]
				for round := range rounds {
					l, err := c.Acquire(t.Context(), fmt.Sprint("x", n%3), opts...)
					if err == nil && round%2 == 0 {
						err = hooks.Of(l).Renew(t.Context())
					}
					if err == nil {
						err = l.Release(t.Context())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	calls.Wait()
	if used := members() - before; used > 5*clients*callers*rounds {
		t.Errorf("%d acquisitions used %d members of multixacts", clients*callers*rounds, used)
	}
}

// I6: whoever gives up a request whose ticket was passed over, and that was granted without it, holds nothing
// afterwards.
func TestI6_GivingUpEndsAGrantBesideATicketThatWasPassedOver(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, waiter := newPeer(t, db.URL()), newPeer(t, db.URL())
	held := holder.mustAcquire(t, "x", time.Minute)
	id := uuid.New()
	ask := func(granted bool) {
		t.Helper()
		if q, err := waiter.enqueue(t.Context(), "x", id, "exclusive", nil); err != nil || q.granted != granted {
			t.Fatalf("%+v, %v; granted is to be %v", q, err, granted)
		}
	}
	ask(false)
	holder.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() WHERE session_id = $1`,
		waiter.session().String())
	if released, err := holder.release(t.Context(), held); err != nil || !released { // nobody alive queues
		t.Fatalf("%v, %v", released, err)
	}
	ask(true)
	const giveUp = `SELECT ended FROM pglock.give_up($1, '{x}', ARRAY[$2::uuid])`
	if !one[bool](t, waiter, giveUp, waiter.key.String(), id.String()) {
		t.Error("the lease has not ended")
	}
	wantFree(t, holder)
}

// A waiter that leaves while a release grants it the lock gives the lock to the next, whether it hears of the grant or
// not.
func TestTrap9_WhoeverLeavesGivesOnWhatItIsGrantedMeanwhile(t *testing.T) {
	db := pgtest.Parallel(t)
	p, leaving := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, p)
	holder := p.party("holder", "exclusive", time.Minute).mustGet(t, "x")
	waiter := p.party("waiter", "exclusive", time.Minute).mustQueue(t, "x")
	p.party("next", "exclusive", time.Minute).mustQueue(t, "x")
	p.exec(t, `BEGIN`)
	waysToEnd["release_lease"](t, holder)
	left := must.Go(func() error {
		_, err := leaving.Exec(t.Context(), waysToLeave["give_up"], waiter.key, "x", waiter.id)
		return err
	})
	leaving.awaitBlocked(t, newPeer(t, db.URL()))
	p.exec(t, `COMMIT`)
	if err := <-left; err != nil || heldBy(t, p, "x") != "next" || queuedFor(t, p, "x") != "" {
		t.Errorf("%v: %q holds it, and %q wait", err, heldBy(t, p, "x"), queuedFor(t, p, "x"))
	}
}

// Whoever takes several requests for one lock back at once hears of each the place that its ticket had, in whatever
// order they are named: those that leave together count, too. So it is for writers and for readers.
func TestGiveUp_EachOfSeveralHasItsOwnPlace(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	const giveUp = `SELECT string_agg(coalesce(place::text, '-'), ' ' ORDER BY n)
		FROM pglock.give_up($1, array_fill($2::text, ARRAY[cardinality($3::uuid[])]), $3::uuid[], $4)`
	for _, mode := range []string{"exclusive", "shared", "limit 2"} {
		for _, spend := range []bool{false, true} {
			for want, order := range map[string][]int{
				"1 3 4":         {1, 3, 4},
				"4 3 1":         {4, 3, 1},
				"3":             {3},
				"- 4 1":         {0, 4, 1}, // 0: a request that has no ticket
				"100 1 100 100": {101, 1, 100, 105},
			} {
				name := fmt.Sprint(mode, spend, want)
				p.party("holder", "exclusive", time.Minute).mustGet(t, name)
				ids := []uuid.UUID{uuid.New()}
				for n := range max(4, order[len(order)-1]) {
					ids = append(ids, p.party(fmt.Sprint("waiter ", n), mode, time.Minute).mustQueue(t, name).id)
				}
				var leaving []uuid.UUID
				for _, n := range order {
					leaving = append(leaving, ids[n])
				}
				if got := one[string](t, p, giveUp, p.key, name, leaving, spend); got != want {
					t.Errorf("%s, spent: %v: tickets %v had the places %s, want %s", mode, spend, order, got, want)
				}
			}
		}
	}
}

// Whoever leaves while somebody keeps the head locked has left, though it cannot serve those behind. They learn from a
// look that it is their turn.
func TestI8_WhoeverLeavesBesideALockedHeadHasLeft(t *testing.T) {
	db := pgtest.Parallel(t)
	p, busy := newHastyPeer(t, db.URL()), newPeer(t, db.URL())
	p.party("holder", "shared", time.Minute).mustGet(t, "x")
	first := p.party("first", "exclusive", time.Minute).mustQueue(t, "x")
	second := p.party("second", "exclusive", time.Minute).mustQueue(t, "x")
	third := p.party("third", "exclusive", time.Minute).mustQueue(t, "x")
	behind := p.party("behind", "shared", time.Minute).mustQueue(t, "x")
	busy.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'x' AND slot = 0 FOR UPDATE`)
	p.exec(t, waysToLeave["give_up"], first.key, "x", first.id)
	p.exec(t, `SELECT pglock.give_up($1, '{x, x}', ARRAY[$2, $3]::uuid[])`, second.key, second.id, third.id)
	if got := queuedFor(t, p, "x"); got != "behind" {
		t.Errorf("%q wait, want the one behind", got)
	}
	busy.exec(t, `ROLLBACK`)
	if s, queued := behind.look(t); !queued || !s.first || *s.left > 0 {
		t.Errorf("I8: the look of the one behind: %+v, %v; want that it is to ask now", s, queued)
	}
	must.Do(t, behind.ask(t, "x", true, false))
	if got := heldBy(t, p, "x"); got != "holder behind" {
		t.Errorf("I8: %s hold it, want both readers", got)
	}
}
