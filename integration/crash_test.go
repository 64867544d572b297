package integration

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// nowhere is a configuration of a connection that cannot be made.
func nowhere(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	config := must.Get(pgx.ParseConfig("postgres://nobody@127.0.0.1:1/nothing?connect_timeout=1"))(t)
	return config
}

func init() { roles["waiter"] = waitInProcess }

// waitInProcess waits for the lock "x", and says when it has it.
func waitInProcess(ctx context.Context, url string, say func(report)) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := pglock.New(ctx, pool, pglock.WithSessionTTL(time.Second))
	if err != nil {
		return err
	}
	say(report{Event: "ready"})
	lease, err := c.Acquire(ctx, "x", pglock.WithTTL(time.Second))
	if err != nil {
		return err
	}
	say(report{Event: "granted", Token: int64(lease.Token())})
	<-lease.Context().Done()
	return context.Cause(lease.Context())
}

// After the end of a crashed holder's lease the first in the queue is granted the lock, by its own timer.
func TestI8_CrashedHolderIsFollowedByTheFirstInTheQueue(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	look.mustAcquire(t, "x", 10*time.Second) // and is never heard of again
	c := newClient(t, db.Pool(t))
	got := make(chan fetched, 3)
	for n := range 3 {
		acquireInBackground(t.Context(), c, n, "x", got)
		awaitQueue(t, look, "x", n+1)
	}
	for n := range 3 {
		f := await(t, got)
		if f.err != nil || f.n != n {
			t.Fatalf("waiter %d was served in place %d: %v", f.n, n, f.err)
		}
		must.Do(t, f.lease.Release(t.Context()))
	}
	wantCount(t, look, 1, "%d takeovers in the history, want 1",
		`SELECT count(*) FROM pglock.events WHERE kind = 'takeover'`)
}

// Whoever comes first after the expiry does not overtake the queue: a try is refused, and who queues behind has the
// head served.
func TestI9_NewcomerAfterTheExpiryServesTheQueue(t *testing.T) {
	db := pgtest.Parallel(t)
	look, waiter, newcomer := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	look.mustAcquire(t, "x", time.Minute)
	w, err := waiter.enqueue(t.Context(), "x", uuid.New(), "exclusive", nil)
	if err != nil || w.ticket == 0 {
		t.Fatalf("%+v, %v", w, err)
	}
	endNow(t, look, "x")
	n, err := newcomer.acquire(t.Context(), "x", uuid.New(), time.Second, false)
	if err != nil || n.granted {
		t.Fatalf("I9: the newcomer overtook the queue: %+v, %v", n, err)
	}
	if behind, err := newcomer.enqueue(t.Context(), "x", uuid.New(), "exclusive", nil); err != nil || behind.granted ||
		behind.ticket <= w.ticket {
		t.Fatalf("I9: the newcomer overtook the queue: %+v, %v", behind, err)
	}
	if id := one[string](t, look,
		`SELECT grant_id::text FROM pglock.locks WHERE name = 'x' AND expires_at > clock_timestamp()`); id != w.id.String() {
		t.Error("the head of the queue does not hold the lock")
	}
}

// A waiter whose process is killed or stopped is passed over when its session has given no sign of life for its TTL.
// One that was handed the lock in that instant keeps it for no longer than the lease's TTL.
func TestDeadWaitersArePassedOver(t *testing.T) {
	t.Parallel() // most of it is waiting
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(how.String(), func(t *testing.T) {
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			c := newClient(t, db.Pool(t))
			holder, err := c.TryAcquire(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			dead := startProcess(t, "waiter", db.URL())
			dead.await("ready")
			awaitQueue(t, look, "x", 1)
			got := make(chan fetched, 1)
			acquireInBackground(t.Context(), newClient(t, db.Pool(t)), 1, "x", got)
			awaitQueue(t, look, "x", 2)
			dead.signal(how)
			pgtest.Eventually(t, "the session to be dead", func() bool {
				return one[int](t, look, `SELECT count(*) FROM pglock.list_waiters('x') WHERE NOT alive`) == 1
			})
			began := time.Now()
			must.Do(t, holder.Release(t.Context()))
			next := served(t, got)
			if token := one[int64](t, look,
				`SELECT token FROM pglock.locks WHERE name = 'x'`); token != int64(holder.Token())+1 ||
				time.Since(began) > patience/2 {
				t.Errorf("token %d after %d: somebody was granted the lock between", token, holder.Token())
			}
			if how == syscall.SIGSTOP {
				dead.signal(syscall.SIGCONT) // it queues again, behind
				awaitQueue(t, look, "x", 1)
				must.Do(t, next.Release(t.Context()))
				if r := dead.await("granted"); r.Token <= int64(next.Token()) {
					t.Errorf("token %d after %d", r.Token, next.Token())
				}
			}
		})
	}
}

// Whoever is served together with others, is named as a successor, or names a limit, is alive: the dead are passed over
// there too.
func TestDeadWaitersAreNeitherServedWithOthersNorNamed(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newHastyPeer(t, db.URL())
	dies := func(name, mode string, capacity any) {
		p := newHastyPeer(t, db.URL())
		p.mustEnqueue(t, name, mode, capacity)
		look.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() WHERE session_id = $1`,
			p.session().String())
	}
	held := look.mustAcquire(t, "readers", time.Minute)
	first, last := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	first.mustEnqueue(t, "readers", "shared", nil)
	dies("readers", "shared", nil)
	last.mustEnqueue(t, "readers", "shared", nil)
	look.mustReleaseBy(t, "release_lease", held)
	wantCount(t, look, 2, "%d readers were served, want the two that live",
		`SELECT count(*) FROM pglock.locks WHERE name = 'readers' AND expires_at > clock_timestamp()`)

	held = look.mustAcquire(t, "named", time.Minute)
	dies("named", "exclusive", nil)
	if outcome := one[string](t, look, `SELECT outcome FROM pglock.hand_over('named', $1, $2, 'peer')`, held.token,
		held.id.String()); outcome != "nobody" {
		t.Errorf("handed over to a dead waiter: %s", outcome)
	}

	look.mustAcquire(t, "limited", time.Minute)
	dies("limited", "limit", 2)
	if _, err := newHastyPeer(t, db.URL()).enqueue(t.Context(), "limited", uuid.New(), "limit", 3); err != nil {
		t.Errorf("a dead waiter's limit refuses another: %v", err)
	}
}

func TestLeaseHandedToAWaiterThatDiedEndsWithItsTTL(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	c := newClient(t, db.Pool(t))
	holder, err := c.TryAcquire(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	dead := startProcess(t, "waiter", db.URL())
	dead.await("ready")
	awaitQueue(t, look, "x", 1)
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), c, 1, "x", got)
	awaitQueue(t, look, "x", 2)
	dead.signal(syscall.SIGKILL) // its session is believed alive for a second yet
	must.Do(t, holder.Release(t.Context()))
	f := await(t, got)
	if f.err != nil || f.lease.Token() <= holder.Token() {
		t.Errorf("%v, %v", f.lease, f.err)
	}
}

// I8: the server crashes while calls wait; they keep their places, or queue again, and are served.
func TestI8_WaitersSurviveAServerCrash(t *testing.T) {
	pgtest.Long(t, "TestI12_I2_GrantsSurviveACrash", "TestI8_LostHintsCostALook")
	t.Parallel()
	server := migrated(t, nil)
	c := newClient(t, newPool(t, server.URL()))
	holder, err := c.TryAcquire(t.Context(), "x", pglock.WithTTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	const waiters = 5
	got := make(chan fetched, waiters)
	before := newPeer(t, server.URL())
	for n := range waiters {
		acquireInBackground(t.Context(), newClient(t, newPool(t, server.URL())), n, "x", got)
		awaitQueue(t, before, "x", n+1)
	}
	must.Do(t, server.Kill())
	must.Do(t, server.Restart(t.Context()))
	look := newPeer(t, server.URL())
	must.Do(t, holder.Release(t.Context()))
	last := holder.Token()
	for range waiters {
		f := await(t, got)
		if f.err != nil || f.lease.Token() <= last {
			t.Fatalf("%v, %v", f.lease, f.err)
		}
		last = f.lease.Token()
		must.Do(t, f.lease.Release(t.Context()))
	}
	awaitQueue(t, look, "x", 0)
}
