package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A client that has no way to LISTEN looks: the more seldom the longer it hears nothing, once for all of its waiters,
// and a hand-over is found within about a second.
func TestI20_WithoutListenHandOversAreFoundByLooking(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	p := newPooler(t, db)
	var count counter
	a, b := newClient(t, newPool(t, p.url("exec"))), newClient(t, newPool(t, p.url("exec"), count.on))
	const waiters = 200 // each with a ticket
	held, err := a.Acquire(t.Context(), "herd")
	if err != nil {
		t.Fatal(err)
	}
	herd, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan fetched, waiters)
	for n := range waiters {
		acquireInBackground(herd, b, n, "herd", got)
	}
	awaitQueue(t, look, "herd", waiters)

	// Intervals of 20 ms that double up to a second, each less up to a quarter: ten looks take 3 s at least.
	const looks, least = 10, 3 * time.Second
	began, lookedBefore, saidBefore := time.Now(), count.looks.Load(), count.statements.Load()
	pgtest.Eventually(t, "looks", func() bool { return count.looks.Load() >= lookedBefore+looks })
	took, looked, said := time.Since(began), count.looks.Load()-lookedBefore, count.statements.Load()-saidBefore
	t.Logf("%d waiters: %d looks in %v, %d statements", waiters, looked, took, said)
	if took < least {
		t.Errorf("%d looks took %v, want at least %v: they do not back off", looks, took, least)
	}
	if said > looks+15 {
		t.Errorf("%d statements for %d looks", said, looks)
	}
	cancel()
	for range waiters {
		await(t, got)
	}

	const rounds, most = 5, 1600 * time.Millisecond // a look's interval is a second at most
	var seldom [rounds]time.Duration
	t.Run("after a long wait", func(t *testing.T) {
		for n := range rounds {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel() // each looks for itself
				seldom[n] = handOverAfterLooks(t, db, p, fmt.Sprint("seldom ", n))
			})
		}
	})
	slices.Sort(seldom[:])
	// handOver takes the lock from a to b and back, and tells how long b waited after the release.
	handOver := func() time.Duration {
		acquireInBackground(t.Context(), b, 0, "herd", got)
		awaitQueue(t, look, "herd", 1)
		began := time.Now()
		must.Do(t, held.Release(t.Context()))
		f := await(t, got)
		took := time.Since(began)
		if f.err != nil {
			t.Fatal(f.err)
		}
		must.Do(t, f.lease.Release(t.Context()))
		if held, err = a.TryAcquire(t.Context(), "herd"); err != nil {
			t.Fatal(err)
		}
		return took
	}
	fastest := most
	for range rounds {
		fastest = min(fastest, handOver())
	}
	t.Logf("hand-overs after a long wait took %v; of %d at once the fastest took %v", seldom, rounds, fastest)
	if seldom[rounds/2] > most { // a busy machine delays some of them
		t.Errorf("hand-overs took %v, want less than %v for most of them", seldom, most)
	}
	if fastest > 500*time.Millisecond { // a client that trusts in notifications looks at most every 750 ms
		t.Errorf("no hand-over took less than %v: the client has not noticed that it hears nothing", fastest)
	}
}

// handOverAfterLooks takes a lock from one client to another that has looked for long, and tells how long that waited
// after the release.
func handOverAfterLooks(t *testing.T, db *pgtest.DB, p *pooler, name string) time.Duration {
	t.Helper()
	look := newPeer(t, db.URL())
	var count counter
	a, b := newClient(t, newPool(t, p.url("exec"))), newClient(t, newPool(t, p.url("exec"), count.on))
	held := mustTry(t, a, name)
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), b, 0, name, got)
	awaitQueue(t, look, name, 1)
	pgtest.Eventually(t, "looks to be seldom", func() bool { return count.looks.Load() >= 7 })
	began := time.Now()
	mustRelease(t, held)
	f := await(t, got)
	took := time.Since(began)
	if f.err != nil {
		t.Fatal(f.err)
	}
	mustRelease(t, f.lease)
	return took
}

// A client that may LISTEN on a connection around the pooler is notified: the grant comes with the hint, without a
// look, and the server was asked once.
func TestI20_AConnectionOfItsOwnToListenBringsTheHints(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	p := newPooler(t, db)
	direct := must.Get(pgx.ParseConfig(db.URL()))(t)
	var count counter
	a := newClient(t, newPool(t, p.url("exec")))
	b := newClient(t, newPool(t, p.url("exec"), count.on), pglock.WithListenConfig(direct))
	// handOver reports whether the hint alone brought the grant, and how long it took.
	handOver := func() (hinted bool, took time.Duration) {
		held, err := a.Acquire(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		asked, looked := count.acquires.Load(), count.looks.Load()
		got := make(chan fetched, 1)
		acquireInBackground(t.Context(), b, 0, "x", got)
		awaitQueue(t, look, "x", 1)
		began := time.Now()
		must.Do(t, held.Release(t.Context()))
		f := await(t, got)
		if took = time.Since(began); f.err != nil {
			t.Fatal(f.err)
		}
		hinted = count.acquires.Load() == asked+1 && count.looks.Load() == looked
		must.Do(t, f.lease.Release(t.Context()))
		return hinted, took
	}
	pgtest.Eventually(t, "a first hint", func() bool { hinted, _ := handOver(); return hinted })
	const rounds = 20
	hints := 0
	var times []time.Duration
	for range rounds {
		hinted, took := handOver()
		if hinted {
			hints++
		}
		times = append(times, took)
	}
	slices.Sort(times)
	t.Logf("%d of %d hand-overs came with the hint alone; p50 %v, slowest %v", hints, rounds, times[rounds/2],
		times[rounds-1])
	if hints < rounds*3/4 { // a machine that stands still for most of a second looks by itself
		t.Errorf("%d of %d hand-overs came with the hint alone", hints, rounds)
	}
	for _, conn := range p.both(t) {
		var channels int
		if err := conn.QueryRow(t.Context(),
			`SELECT count(*) FROM pg_listening_channels()`).Scan(&channels); err != nil || channels != 0 {
			t.Errorf("a shared session listens to %d channels, %v", channels, err)
		}
	}
}

// counter counts the statements of a pool, and of the connections that are made as the pool makes its own.
type counter struct{ statements, acquires, looks atomic.Int64 }

func (c *counter) on(config *pgxpool.Config) { config.ConnConfig.Tracer = c }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	switch {
	case strings.Contains(data.SQL, `"pglock".acquire_`):
		c.acquires.Add(1)
	case strings.Contains(data.SQL, `"pglock".look(`):
		c.looks.Add(1)
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
