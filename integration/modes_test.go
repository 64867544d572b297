package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func mustTry(t *testing.T, c *pglock.Client, name string, opts ...pglock.AcquireOption) *pglock.Lease {
	t.Helper()
	l, err := c.TryAcquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", name, err)
	}
	return l
}

func mustRelease(t *testing.T, leases ...*pglock.Lease) {
	t.Helper()
	for _, l := range leases {
		must.Do(t, l.Release(t.Context()))
	}
}

// Readers share, a writer waits for all of them, and later readers do not overtake it.
func TestSharedLockDoesNotStarveAWaitingWriter(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	c := newClient(t, db.Pool(t))
	first, second := mustTry(t, c, "x", pglock.WithShared()), mustTry(t, c, "x", pglock.WithShared())
	got := make(chan fetched, 4)
	acquireInBackground(t.Context(), c, 0, "x", got) // the writer
	awaitQueue(t, look, "x", 1)
	if _, err := c.TryAcquire(t.Context(), "x", pglock.WithShared()); !errors.Is(err, pglock.ErrHeld) {
		t.Errorf("a reader overtook the waiting writer: %v", err)
	}
	for n := 1; n <= 3; n++ {
		acquireInBackground(t.Context(), newClient(t, db.Pool(t)), n, "x", got, pglock.WithShared())
		awaitQueue(t, look, "x", n+1)
	}
	mustRelease(t, first)
	wantCount(t, look, 4, "%d are queued after the first reader's release, want 4", `SELECT count(*) FROM pglock.waiters`)
	mustRelease(t, second)
	writer := await(t, got)
	if writer.n != 0 || writer.err != nil || writer.lease.Slot() != 0 {
		t.Fatalf("%d: %v", writer.n, writer.err)
	}
	mustRelease(t, writer.lease)
	slots := make(map[int]bool)
	last := writer.lease.Token()
	for range 3 { // all of them at once
		f := await(t, got)
		if f.err != nil || f.lease.Token() <= last || f.lease.Mode() != pglock.ModeShared {
			t.Fatalf("%v, %v", f.lease, f.err)
		}
		slots[f.lease.Slot()] = true
		defer f.lease.Release(t.Context())
	}
	if len(slots) != 3 {
		t.Errorf("slots %v, want three different ones", slots)
	}
}

// Whoever fits beside all holders is refused because of who waits before it, or above, and hears of that one: from a
// try, and from a wait that ends.
func TestTheErrorOfAReaderNamesTheWriterBeforeIt(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	var waiting waits
	c := newClient(t, db.Pool(t), pglock.WithObserver(&waiting))
	calls := int64(0)
	awaitWait := func() { // then the client knows that it waits, and for whom
		t.Helper()
		calls++
		pgtest.Eventually(t, "the call waits", func() bool { return waiting.Load() == calls })
	}
	hold := func(name string, opts ...pglock.AcquireOption) {
		mustTry(t, c, name, append(opts, pglock.WithHolder("in nobody's way"))...)
	}
	hold("x", pglock.WithShared())
	hold("limited", pglock.WithLimit(2))
	hold("tree/leaf", pglock.WithShared())
	got := make(chan fetched, 3)
	for name, opts := range map[string][]pglock.AcquireOption{
		"x": nil, "limited": nil, "tree": {pglock.WithSubtree()},
	} {
		acquireInBackground(t.Context(), c, 0, name, got, append(opts, pglock.WithHolder("first"))...)
		awaitWait()
	}
	for _, wanted := range []struct {
		name, by, text string
		mode           pglock.AcquireOption
	}{
		{"x", "", `pglock: lock "x" is not free: "first" waits for it, and goes first`, pglock.WithShared()},
		{"limited", "", `pglock: lock "limited" is not free: "first" waits for it, and goes first`, pglock.WithLimit(2)},
		{"tree/leaf", "tree", `pglock: lock "tree/leaf" is not free: "first" waits for "tree", above it`,
			pglock.WithShared()},
	} {
		_, try := c.TryAcquire(t.Context(), wanted.name, wanted.mode)
		ctx, cancel := context.WithCancel(t.Context())
		acquireInBackground(ctx, c, 1, wanted.name, got, wanted.mode)
		awaitWait()
		cancel()
		for how, err := range map[string]error{"a try": try, "a wait": await(t, got).err} {
			var held *pglock.HeldError
			if !errors.As(err, &held) || held.Holder != "first" || held.Token != 0 || held.By != wanted.by ||
				!held.ExpiresAt.IsZero() || !strings.Contains(held.Error(), wanted.text) {
				t.Errorf("%s: %v, %+v; want %s", how, err, held, wanted.text)
			}
		}
		awaitQueue(t, look, wanted.name, map[bool]int{true: 1, false: 0}[wanted.by == ""])
	}
	var held *pglock.HeldError
	if _, err := c.TryAcquire(t.Context(), "x"); !errors.As(err, &held) || held.Holder != "in nobody's way" ||
		held.Token == 0 {
		t.Errorf("a writer: %v, want the reader that is in its way", err)
	}
}

// A waiting writer that gives up lets the readers behind it in.
func TestReadersBehindAWriterThatGaveUpAreGranted(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	c := newClient(t, db.Pool(t))
	defer mustTry(t, c, "x", pglock.WithShared()).Release(t.Context())
	got := make(chan fetched, 3)
	ctx, cancel := context.WithCancel(t.Context())
	acquireInBackground(ctx, c, 0, "x", got)
	awaitQueue(t, look, "x", 1)
	for n := 1; n <= 2; n++ {
		acquireInBackground(t.Context(), newClient(t, db.Pool(t)), n, "x", got, pglock.WithShared())
		awaitQueue(t, look, "x", n+1)
	}
	cancel()
	for range 3 {
		if f := await(t, got); (f.n == 0) != (f.err != nil) {
			t.Errorf("%d: %v", f.n, f.err)
		}
	}
}

// At most n hold a limited lock at once, in different slots from 1 to n, each with a token of its own.
func TestLimitIsNeverExceeded(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	const limit, callers = 3, 12
	var holding [limit + 1]atomic.Int32
	var total atomic.Int32
	wg := pgtest.Group(t)
	for range 3 {
		c := newClient(t, db.Pool(t))
		for range callers / 3 {
			wg.Go(func() {
				for range 12 {
					err := c.Do(t.Context(), "x", func(_ context.Context, l *pglock.Lease) error {
						if n := total.Add(1); n > limit {
							t.Errorf("%d hold at once", n)
						}
						if l.Slot() < 1 || l.Slot() > limit {
							t.Errorf("slot %d", l.Slot())
						} else if n := holding[l.Slot()].Add(1); n != 1 {
							t.Errorf("%d hold slot %d", n, l.Slot())
						} else {
							defer holding[l.Slot()].Add(-1)
						}
						defer total.Add(-1)
						return nil
					}, pglock.WithLimit(limit))
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := one[int](t, look, `SELECT count(*) FROM pglock.locks WHERE name = 'x' AND slot > 0`); n != limit {
		t.Errorf("%d slots, want %d", n, limit)
	}
	wantCount(t, look, 0, "%d tickets are left", `SELECT count(*) FROM pglock.waiters`)
}

func TestLimitMustBeTheSameForAll(t *testing.T) {
	db := pgtest.Parallel(t)
	c := newClient(t, db.Pool(t))
	l := mustTry(t, c, "x", pglock.WithLimit(2))
	for _, ask := range []func() (*pglock.Lease, error){
		func() (*pglock.Lease, error) { return c.TryAcquire(t.Context(), "x", pglock.WithLimit(3)) },
		func() (*pglock.Lease, error) { return c.Acquire(t.Context(), "x", pglock.WithLimit(3)) },
	} {
		if _, err := ask(); !errors.Is(err, pglock.ErrLimit) || !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%v, want ErrLimit", err)
		}
	}
	mustRelease(t, l)
	mustRelease(t, mustTry(t, c, "x", pglock.WithLimit(3))) // nobody uses the other limit any more
}

// Each slot has a fence of its own: its earlier holder is refused, and the holder of another slot is not in the way.
func TestSlotsHaveFencesOfTheirOwn(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE account (slot int, token bigint)`)
	pool := db.Pool(t)
	c, store := newClient(t, pool), fencedstore.New(pool)
	write := func(l *pglock.Lease) error {
		return store.Write(t.Context(), l, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO account VALUES ($1, $2)`, l.Slot(), l.Token())
			return err
		})
	}
	one1, two := mustTry(t, c, "x", pglock.WithLimit(2)), mustTry(t, c, "x", pglock.WithLimit(2))
	if one1.Resource() != "x#1" || two.Resource() != "x#2" {
		t.Errorf("resources %q and %q", one1.Resource(), two.Resource())
	}
	if err := write(two); err != nil { // the greater token first
		t.Fatal(err)
	}
	if err := write(one1); err != nil {
		t.Errorf("the holder of slot 1 after that of slot 2: %v", err)
	}
	// a pause that outlasts the lease
	look.exec(t,
		`UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 s' WHERE name = 'x' AND slot = 1`)
	next := mustTry(t, newClient(t, pool), "x", pglock.WithLimit(2))
	if next.Slot() != 1 || next.Token() <= two.Token() {
		t.Fatalf("slot %d, token %d", next.Slot(), next.Token())
	}
	must.Do(t, write(next))
	if err := write(one1); !errors.Is(err, fencedstore.ErrStaleToken) && !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the earlier holder of slot 1: %v, want a refusal", err)
	}
	wantCount(t, look, 3, "%d writes, want 3", `SELECT count(*) FROM account`)
}

// I2, I9 with all modes in one queue: the log of the database shows tickets served in order, tokens strictly increasing
// in the order of grants, readers never beside a writer or a semaphore's holders, and never more than the limit.
func TestI2_I9_ModesMixedUnderLoad(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	wg := pgtest.Group(t)
	options := [][]pglock.AcquireOption{nil, {pglock.WithShared()}, {pglock.WithShared()}, {pglock.WithLimit(2)}}
	const clients, callers, rounds = 3, 8, 12
	var done atomic.Int64
	for n := range clients {
		c := newClient(t, db.Pool(t, maxConnections(4)))
		for m := range callers {
			wg.Go(func() {
				for round := range rounds {
					name := fmt.Sprint("n", (n+m+round)%2)
					wait := patience
					if (n+m+round)%7 == 0 {
						wait = 15 * time.Millisecond // some give up
					}
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					err := c.Do(ctx, name, func(context.Context, *pglock.Lease) error {
						return nil
					}, options[(m+round)%4]...)
					if err == nil {
						done.Add(1)
					} else if wait == patience || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("after at most %v: %v", wait, err)
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	pgtest.Eventually(t, "every lock to be free and every queue empty", func() bool {
		return one[int](t, look,
			`SELECT (SELECT count(*) FROM pglock.waiters) + (SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp())`) == 0
	})
	if granted, queued := checkModes(t, look); granted < int(done.Load()) || queued == 0 {
		t.Errorf("%d grants, %d of them from the queue, and %d calls that had one", granted, queued, done.Load())
	}
}

// checkModes reads the log of grants of locks of all modes. It returns how many there were, and how many of them from
// the queue.
func checkModes(tb testing.TB, p *peer) (granted, queued int) {
	tb.Helper()
	const grants = `WITH grants AS (
		SELECT n, name, slot, mode, capacity, ticket, new_token, granted_at,
			(SELECT min(e.old_expires) FROM public.grant_log e WHERE e.name = g.name AND e.slot = g.slot AND e.n > g.n
				AND (e.new_expires = '-infinity' OR e.new_token <> g.new_token)) AS ended
		FROM public.grant_log g WHERE new_expires > '-infinity' AND (old_token IS NULL OR new_token <> old_token)) `
	if n := one[int](tb, p, grants+
		`SELECT count(*) FROM (SELECT new_token, lag(new_token) OVER (PARTITION BY name ORDER BY n) AS before FROM grants) g WHERE new_token <= before`); n != 0 {
		tb.Errorf("I2: %d grants have a token that is not greater than the one before", n)
	}
	if n := one[int](tb, p, grants+
		`SELECT count(*) FROM (SELECT ticket, lag(ticket) OVER (PARTITION BY name ORDER BY n) AS before FROM grants WHERE ticket > 0 AND slot > 0) g WHERE ticket < before`); n != 0 {
		tb.Errorf("I9: %d grants came after one with a greater ticket", n)
	}
	if n := one[int](tb, p, grants+
		`SELECT count(*) FROM grants a JOIN grants b ON a.name = b.name AND a.n < b.n AND b.granted_at < coalesce(a.ended, 'infinity')
		WHERE a.mode = 'exclusive' OR b.mode = 'exclusive' OR a.mode <> b.mode`); n != 0 {
		tb.Errorf("I1: %d pairs of leases overlap that must not", n)
	}
	if n := one[int](tb, p, grants+`SELECT count(*) FROM grants a WHERE a.mode = 'limit' AND a.capacity < (
		SELECT count(*) FROM grants b WHERE b.name = a.name AND b.mode = 'limit' AND b.n <= a.n AND coalesce(b.ended, 'infinity') > a.granted_at)`); n != 0 {
		tb.Errorf("%d grants exceed the limit", n)
	}
	granted = one[int](tb, p, grants+`SELECT count(*) FROM grants`)
	queued = one[int](tb, p, grants+`SELECT count(*) FROM grants WHERE ticket > 0`)
	tb.Logf("%d grants, %d of them from the queue", granted, queued)
	return granted, queued
}

// I9: readers of another client that a writer's release grants the lock are notified, even if the release expects
// another writer and announces that. Grants that are found by looking would take a second each.
func TestI9_ReadersAreToldOfTheirGrants(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	a, b := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	const rounds = 12
	got := make(chan fetched, 2)
	took := make(map[int][]time.Duration) // for each kind of readers
	for n := range rounds {
		first := mustTry(t, b, "x")
		// so that a's lease was waited for, and b's release went to another
		acquireInBackground(t.Context(), a, n, "x", got)
		awaitQueue(t, look, "x", 1)
		mustRelease(t, first)
		writer := await(t, got)
		if writer.err != nil {
			t.Fatal(writer.err)
		}
		mode := pglock.WithShared()
		if n%2 == 0 {
			mode = pglock.WithLimit(2)
		}
		acquireInBackground(t.Context(), b, n, "x", got, mode)
		awaitQueue(t, look, "x", 1)
		began := time.Now()
		mustRelease(t, writer.lease)
		reader := await(t, got)
		if n > 0 { // in its first wait b has to begin to listen
			took[n%2] = append(took[n%2], time.Since(began))
		}
		if reader.err != nil {
			t.Fatal(reader.err)
		}
		mustRelease(t, reader.lease)
	}
	for _, times := range took {
		slices.Sort(times)
		t.Logf("the grants took %v", times)
		if times[len(times)/2] > 400*time.Millisecond { // a busy machine delays some of them
			t.Errorf("grants took %v: they were found by looking", times)
		}
	}
}
