package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// awaitQueue returns when so many are queued for the lock.
func awaitQueue(t *testing.T, look *peer, name string, want int) {
	t.Helper()
	pgtest.Eventually(t, fmt.Sprintf("%d waiters in the queue of %q", want, name), func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.waiters WHERE name = $1`, name) == want
	})
}

// fetched is what a waiting call came back with.
type fetched struct {
	n     int
	lease *pglock.Lease
	err   error
}

// acquireInBackground starts a waiting call.
func acquireInBackground(ctx context.Context, c *pglock.Client, n int, name string, got chan<- fetched,
	opts ...pglock.AcquireOption) {
	go func() {
		l, err := c.Acquire(ctx, name, opts...)
		got <- fetched{n, l, err}
	}()
}

// await gives what a waiting call came back with, or fails.
func await(t *testing.T, got <-chan fetched) fetched {
	t.Helper()
	select {
	case f := <-got:
		return f
	case <-time.After(patience):
		t.Fatalf("waited %v in vain for a waiting call to return", patience)
		return fetched{}
	}
}

// served is the lease that a waiting call came back with, or fails.
func served(t *testing.T, got <-chan fetched) *pglock.Lease {
	t.Helper()
	f := await(t, got)
	must.Do(t, f.err)
	return f.lease
}

// I9: fifty calls of several clients are served in the order of their tickets, each by the release before it.
func TestI9_WaitersAreServedInTicketOrder(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	const waiters = 50
	var clients []*pglock.Client
	for range 5 {
		clients = append(clients, newClient(t, db.Pool(t)))
	}
	holder := must.Get(clients[0].TryAcquire(t.Context(), "x"))(t)
	got := make(chan fetched, waiters)
	for n := range waiters {
		acquireInBackground(t.Context(), clients[n%len(clients)], n, "x", got)
		awaitQueue(t, look, "x", n+1)
	}
	if _, err := newClient(t, db.Pool(t)).TryAcquire(t.Context(), "x"); !errors.Is(err, pglock.ErrHeld) {
		t.Errorf("a newcomer: %v, want ErrHeld", err)
	}
	last := holder.Token()
	began := time.Now()
	for n := range waiters {
		must.Do(t, holder.Release(t.Context()))
		f := await(t, got)
		if f.err != nil || f.n != n {
			t.Fatalf("waiter %d was served in place %d: %v", f.n, n, f.err)
		}
		if holder = f.lease; holder.Token() <= last {
			t.Errorf("token %d after %d", holder.Token(), last)
		}
		last = holder.Token()
	}
	t.Logf("%d hand-overs in %v", waiters, time.Since(began))
	checkGrants(t, look)
}

func TestThousandsWaitWithFourConnections(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newClient(t, db.Pool(t, maxConnections(4)))
	names, each := 50, inThousands(200)
	wg := pgtest.Group(t)
	var holders []*pglock.Lease
	for n := range names {
		l := must.Get(c.TryAcquire(t.Context(), fmt.Sprint("n", n)))(t)
		holders = append(holders, l)
	}
	began := time.Now()
	for n := range names {
		for range each {
			wg.Go(func() {
				l, err := c.Acquire(t.Context(), fmt.Sprint("n", n))
				if err == nil {
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	pgtest.Eventually(t, "all to be in the queue", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.waiters`) == names*each
	})
	t.Logf("%d queued in %v", names*each, time.Since(began))
	pgtest.Eventually(t, "the connections to be few", func() bool {
		return one[int](t, look,
			`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`) <= 6
	})
	began = time.Now()
	for _, l := range holders {
		must.Do(t, l.Release(t.Context()))
	}
	wg.Wait()
	t.Logf("%d hand-overs in %v", names*each, time.Since(began))
}

// maxConnections bounds a pool.
func maxConnections(n int32) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.MaxConns = n }
}

// I9: a release wakes one waiter, and each acquisition is one request to the server: to be queued. With 20 calls of two
// clients waiting, the server counts one acquire a call, one release a lease, and no more announcements than
// hand-overs.
func TestI9_OneRequestPerAcquisitionAndOneHintPerHandOver(t *testing.T) {
	t.Parallel()
	server := migrated(t, map[string]string{"track_functions": "all"})
	look := newPeer(t, server.URL())
	pools := []*pgxpool.Pool{newPool(t, server.URL()), newPool(t, server.URL())}
	clients := []*pglock.Client{newClient(t, pools[0]), newClient(t, pools[1])}
	calls := func(function string) int {
		return one[int](t, look,
			`SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = 'pglock' AND funcname = $1`,
			function)
	}
	const waiters = 20
	holder := mustTry(t, clients[0], "x")
	got := make(chan fetched, waiters)
	queued := time.Now()
	for n := range waiters {
		acquireInBackground(t.Context(), clients[n%2], n, "x", got)
		awaitQueue(t, look, "x", n+1)
	}
	began := time.Now()
	for range waiters {
		mustRelease(t, holder)
		holder = served(t, got)
	}
	mustRelease(t, holder)
	took := time.Since(began)
	// A client looks in intervals of 20 ms that double up to a second, each less up to a quarter. They begin anew with
	// each ticket until notifications arrive, and when they do.
	mayLook := waiters + len(clients)*(8+int(time.Since(queued)/(750*time.Millisecond)))
	for n, c := range clients {
		must.Do(t, c.Close(t.Context()))
		pools[n].Close()
	}
	// A connection reports what it has counted before it leaves the server's list.
	pgtest.Eventually(t, "the clients' connections to be gone", func() bool {
		return one[int](t, look,
			`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`) == 0
	})
	pgtest.Eventually(t, "the server to have counted every call", func() bool {
		return calls("release_lease") == waiters+1 && calls("acquire_lease") > waiters
	})
	asked, told, looked := calls("acquire_lease"), calls("announce"), calls("look")
	t.Logf("%d hand-overs in %v: %d requests, %d announcements, %d looks", waiters, took, asked, told, looked)
	if looked > mayLook {
		t.Errorf("%d looks, want %d at most", looked, mayLook)
	}
	// A look may find a grant a moment before its hint comes: then the call asks once more.
	if asked < waiters+1 || asked > waiters+1+max(2, looked) {
		t.Errorf("%d requests for %d acquisitions", asked, waiters+1)
	}
	if told < waiters-2 || told > waiters+1 { // the last release cannot know that nobody is left
		t.Errorf("%d announcements for %d hand-overs", told, waiters)
	}
}

// A release wakes one waiter, not all: of those who listen and queue only the next one hears of it. What the others
// hear next is what each is sent afterwards.
func TestI9_Trap7_AReleaseWakesOneWaiter(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	held := holder.mustAcquire(t, "x", time.Minute)
	var waiters [3]*peer
	var tickets [len(waiters)]queued
	for n := range waiters {
		waiters[n] = newPeer(t, db.URL())
		waiters[n].listen(t)
		tickets[n] = waiters[n].mustEnqueue(t, "x", "exclusive", nil)
	}
	for served := range waiters {
		h := holder.handing(t, `SELECT more -> 'handed' FROM pglock.release_lease($1, $2, $3)`, "x", held.token,
			held.id.String())
		holder.exec(t, `SELECT pglock.announce('{x}', $1)`, h.slots)
		for n, w := range waiters {
			look.exec(t, `SELECT pg_notify($1, 'afterwards')`, w.channel())
			said := w.hear(t)
			if n == served {
				wantHint(t, look, said, tickets[n].grant, tickets[n].ticket)
				said = w.hear(t)
			}
			if said != "afterwards" {
				t.Errorf("the release for waiter %d told waiter %d %q", served, n, said)
			}
		}
		holder, held = waiters[served], tickets[served].grant
		held.token = grantOf(t, look, "x", held.id)
	}
}

// A release stands when nobody can be told of it, as when the server's queue of notifications is full: the lock is
// handed over, the releaser hears of no failure, and the next holder finds its grant by looking.
func TestReleaseStandsWhenNotificationsFail(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	a, b := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	got := make(chan fetched, 1)
	holder := mustTry(t, a, "x")
	for n := range 6 { // from the second hand-over on the announcement travels with the release
		waits := b
		if n%2 == 1 {
			waits = a
		}
		acquireInBackground(t.Context(), waits, n, "x", got)
		awaitQueue(t, look, "x", 1)
		if n == 2 {
			look.exec(t,
				`CREATE OR REPLACE FUNCTION pglock.announce(p_names text[], p_slots int[]) RETURNS bigint LANGUAGE plpgsql
					AS $$ BEGIN RAISE EXCEPTION 'too many notifications' USING ERRCODE = '57014'; END $$`)
		}
		if err := holder.Release(t.Context()); err != nil {
			t.Fatalf("release %d: %v", n, err)
		}
		holder = served(t, got)
	}
	mustRelease(t, holder)
}
