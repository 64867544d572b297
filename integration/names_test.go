package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// footprint is what the process holds once the garbage is collected.
type footprint struct {
	heap, stack int64 // bytes
	goroutines  int
}

// weigh collects garbage until the heap stays as it is.
func weigh(t *testing.T) footprint {
	t.Helper()
	var now runtime.MemStats
	last := int64(-1)
	for range 50 {
		runtime.GC()
		runtime.GC() // what a sync.Pool holds goes with the second
		runtime.ReadMemStats(&now)
		if heap := int64(now.HeapAlloc); last >= 0 && max(heap-last, last-heap) < 4<<10 {
			break
		}
		last = int64(now.HeapAlloc)
		time.Sleep(5 * time.Millisecond) // between two looks; nothing depends on its length
	}
	return footprint{int64(now.HeapAlloc), int64(now.StackInuse), runtime.NumGoroutine()}
}

func (f footprint) since(before footprint) footprint {
	return footprint{f.heap - before.heap, f.stack - before.stack, f.goroutines - before.goroutines}
}

// each is how many bytes of the heap come to one of n.
func (f footprint) each(n int) float64 { return float64(f.heap) / float64(n) }

func (f footprint) String() string {
	return fmt.Sprintf("%d bytes of heap, %d of stacks, %d goroutines", f.heap, f.stack, f.goroutines)
}

// openPool has all its connections open, so that none is weighed with what comes later.
func openPool(t *testing.T, db *pgtest.DB, connections int32) *pgxpool.Pool {
	t.Helper()
	pool := newPool(t, db.URL(), maxConnections(connections), func(c *pgxpool.Config) { c.MinConns = connections })
	pgtest.Eventually(t, "the connections to open", func() bool { return pool.Stat().TotalConns() == connections })
	return pool
}

// useOnce takes and gives back each of the names from first to last, from several goroutines.
func useOnce(t *testing.T, c *pglock.Client, first, last int) {
	t.Helper()
	names := make(chan int)
	wg := pgtest.Group(t)
	for range 16 {
		wg.Go(func() {
			for n := range names {
				lease, err := c.TryAcquire(t.Context(), fmt.Sprintf("names/used-once/%08d", n))
				if err == nil {
					err = lease.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := first; n <= last && !t.Failed(); n++ {
		names <- n
	}
	close(names)
	wg.Wait()
}

// A name of 24 bytes that stays anywhere costs 24, and 16 for the string that points to it; a grant ID 16.
func TestNamesThatWereUsedOnceLeaveNothingBehind(t *testing.T) {
	pgtest.Long(t, "TestI21_PruneNeverLowersATokenNorReopensAFence")
	if testing.Short() {
		t.Skip("uses 20,000 names")
	}
	names, most := inThousands(40_000), 16.0 // bytes each
	c := newClient(t, openPool(t, pgtest.Database(t), 8))
	useOnce(t, c, 1, names/10) // maps and buffers have grown to what so many callers need
	before := weigh(t)
	useOnce(t, c, names/10+1, names/10+names)
	left := weigh(t).since(before)
	t.Logf("%d names have left %v: %.2f bytes each", names, left, left.each(names))
	if left.each(names) >= most {
		t.Errorf("%.1f bytes are left of each name, want less than %.0f", left.each(names), most)
	}
	if left.goroutines > 4 { // those of a connection that was opened again
		t.Errorf("%d goroutines are left of %d names", left.goroutines, names)
	}
}

// holdMany fills leases with locks of its own.
func holdMany(t *testing.T, c *pglock.Client, leases []*pglock.Lease) {
	t.Helper()
	wg := pgtest.Group(t)
	for caller := range 16 {
		wg.Go(func() {
			for n := caller; n < len(leases); n += 16 {
				lease, err := c.TryAcquire(t.Context(), fmt.Sprintf("names/held/%08d", n),
					pglock.WithTTL(10*time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				leases[n] = lease
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func TestAHeldLeaseCostsNoGoroutineAndLessThanTwoKiB(t *testing.T) {
	const most = 2 << 10
	many := 5 * inThousands(2000)
	c := newClient(t, openPool(t, pgtest.Database(t), 8))
	useOnce(t, c, 1, 500)
	leases := make([]*pglock.Lease, many)
	before := weigh(t)
	holdMany(t, c, leases)
	for _, l := range leases {
		if l.Context().Err() != nil || !l.Valid() {
			t.Fatalf("%v was lost", l)
		}
	}
	held := weigh(t).since(before)
	t.Logf("%d held leases: %v: %.0f bytes each", many, held, held.each(many))
	if held.each(many) > most {
		t.Errorf("a held lease costs %.0f bytes of heap, want at most %d", held.each(many), most)
	}
	if held.goroutines > 8 { // of the heartbeat and its connection
		t.Errorf("%d held leases have %d goroutines", many, held.goroutines)
	}
	if held.stack > 1<<20 {
		t.Errorf("%d held leases use %d bytes of stacks", many, held.stack)
	}
	release := func() footprint {
		for n, l := range leases {
			mustRelease(t, l)
			leases[n] = nil
		}
		return weigh(t)
	}
	once := release() // maps keep the room that they once needed, and connections their statements
	holdMany(t, c, leases)
	left := release().since(once)
	t.Logf("released: %v: %.0f bytes each", left, left.each(many))
	if left.each(many) > 256 {
		t.Errorf("%.0f bytes are left of each lease", left.each(many))
	}
}

func TestAWaiterCostsNoGoroutineButItsCallersAndLessThanTwoKiB(t *testing.T) {
	pgtest.Long(t, "TestAHeldLeaseCostsNoGoroutineAndLessThanTwoKiB")
	const many, rounds, most = 500, 8, 2 << 10
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	holder := newClient(t, openPool(t, db, 2))
	holdMany(t, holder, make([]*pglock.Lease, many))
	waits := newClient(t, openPool(t, db, 2)) // each connection keeps buffers for what was sent at once
	// the runtime keeps what the callers' goroutines needed, and maps have grown
	for range 3 {
		waitFor(t, waits, look, many)
	}
	before := weigh(t)
	after := before
	var cost footprint
	for round := range rounds { // the least: what else the process keeps for a while is in some of them alone
		during := waitFor(t, waits, look, many)
		after = weigh(t)
		if now := during.since(after); round == 0 || now.heap < cost.heap {
			cost = now
		}
	}
	t.Logf("%d waiters: %v: %.0f bytes of heap and %d of stacks each", many, cost, cost.each(many), cost.stack/many)
	if cost.each(many) > most {
		t.Errorf("a waiter costs %.0f bytes of heap, want at most %d", cost.each(many), most)
	}
	if cost.goroutines > many+8 {
		t.Errorf("%d callers that wait have %d goroutines", many, cost.goroutines)
	}
	left := after.since(before)
	t.Logf("%d waiters that are gone: %v: %.0f bytes each", rounds*many, left, left.each(rounds*many))
	if left.each(rounds*many) > 128 {
		t.Errorf("%v are left of %d waiters", left, rounds*many)
	}
}

// waitFor has n callers wait for names that are held, weighs the process meanwhile, and ends their waits.
func waitFor(t *testing.T, c *pglock.Client, look *peer, n int) footprint {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	goroutines := runtime.NumGoroutine()
	wg := pgtest.Group(t)
	for i := range n {
		wg.Go(func() {
			if _, err := c.Acquire(ctx, fmt.Sprintf("names/held/%08d", i)); !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter got %v", err)
			}
		})
	}
	pgtest.Eventually(t, "all to be queued", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.waiters`) == n
	})
	weight := weigh(t)
	cancel()
	wg.Wait()
	pgtest.Eventually(t, "the queues to be empty and the goroutines gone", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.waiters`) == 0 && runtime.NumGoroutine() <= goroutines+8
	})
	return weight
}
