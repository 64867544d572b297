package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// observed keeps the events of a client, each with what tells it from others in a few words.
type observed struct {
	mu     sync.Mutex
	events []pglock.Event
}

func (o *observed) Observe(_ context.Context, e pglock.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

// words describe the events of a lock in order, without those of renewals.
func (o *observed) words(lock string) (all []string) {
	for _, e := range o.all() {
		if e.Lock != lock || e.Kind == pglock.EventRenew {
			continue
		}
		text := string(e.Kind)
		for _, word := range []string{string(e.Reason)} {
			if word != "" {
				text += " " + word
			}
		}
		if e.Place > 0 {
			text += fmt.Sprint(" place ", e.Place)
		}
		if e.Kind == pglock.EventHandOver {
			text += fmt.Sprint(" ", e.Count)
		}
		all = append(all, text)
	}
	return all
}

func (o *observed) all() []pglock.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events)
}

func (o *observed) of(kind pglock.EventKind) (some []pglock.Event) {
	for _, e := range o.all() {
		if e.Kind == kind {
			some = append(some, e)
		}
	}
	return some
}

func (o *observed) want(t *testing.T, lock string, want ...string) {
	t.Helper()
	for begin := time.Now(); ; {
		got := o.words(lock)
		if slices.Equal(got, want) {
			return
		}
		if len(got) > len(want) || time.Since(begin) > 20*time.Second {
			t.Errorf("lock %q: events %q, want %q", lock, got, want)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// observing are two clients of one database, each with an observer.
func observing(t *testing.T, opts ...pglock.Option) (pool *pgxpool.Pool, a, b *pglock.Client, ofA, ofB *observed) {
	t.Helper()
	pool = pgtest.Database(t).Pool(t)
	ofA, ofB = &observed{}, &observed{}
	a = startClient(t, pool, append(opts, pglock.WithObserver(ofA))...)
	b = startClient(t, pool, append(opts, pglock.WithObserver(ofB))...)
	return pool, a, b, ofA, ofB
}

func release(t *testing.T, leases ...*pglock.Lease) {
	t.Helper()
	for _, l := range leases {
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("release %v: %v", l, err)
		}
	}
}

func TestEachWayOfALockToAWaitingCallIsObserved(t *testing.T) {
	t.Parallel()
	pool, a, b, ofA, ofB := observing(t)
	one := []*pglock.Client{b}
	patience := 20 * time.Second

	t.Run("released", func(t *testing.T) {
		l := mustAcquire(t, a, "released")
		next := queueing(t, pool, "released", one, []string{"next"})
		ofB.want(t, "released", "wait place 1")
		release(t, l)
		got := within(t, patience, "next", next[0])
		ofA.want(t, "released", "grant", "release", "hand over 1")
		ofB.want(t, "released", "wait place 1", "grant place 1")
		release(t, got)
		ofB.want(t, "released", "wait place 1", "grant place 1", "release")
	})
	t.Run("released in the same client", func(t *testing.T) {
		l := mustAcquire(t, a, "own")
		next := queueing(t, pool, "own", []*pglock.Client{a}, []string{"next"})
		ofA.want(t, "own", "grant", "wait place 1")
		release(t, l)
		release(t, within(t, patience, "next", next[0]))
		// The hand-over is of the first lease, the grant of the second: they may come in either order.
		pgtest.Eventually(t, "the last event", func() bool { return len(ofA.words("own")) == 6 })
		got := ofA.words("own")
		slices.Sort(got[3:5])
		if want := []string{"grant", "wait place 1", "release", "grant place 1", "hand over 1",
			"release"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	})
	t.Run("handed over", func(t *testing.T) {
		l := mustAcquire(t, a, "named")
		next := queueing(t, pool, "named", one, []string{"first"})
		ofB.want(t, "named", "wait place 1") // the observer may hear of two calls in either order
		next = append(next, queueing(t, pool, "named", one, []string{"second"})...)
		if err := l.HandOver(t.Context(), "nobody"); !errors.Is(err, pglock.ErrNoWaiter) {
			t.Fatal(err)
		}
		must.Do(t, l.HandOver(t.Context(), "second"))
		second := within(t, patience, "second", next[1])
		ofA.want(t, "named", "grant", "release", "hand over 1")
		ofB.want(t, "named", "wait place 1", "wait place 2", "grant place 2")
		release(t, second)
		release(t, within(t, patience, "first", next[0]))
	})
	t.Run("readers together", func(t *testing.T) {
		l := mustAcquire(t, a, "shared")
		next := queueing(t, pool, "shared", one, []string{"x", "y", "z"}, pglock.WithShared())
		release(t, l)
		for _, reader := range next {
			release(t, within(t, patience, "a reader", reader))
		}
		ofA.want(t, "shared", "grant", "release", "hand over 3")
		slots := make(map[int]bool)
		pgtest.Eventually(t, "the grants of three slots", func() bool {
			for _, e := range ofB.of(pglock.EventGrant) {
				if e.Lock == "shared" && e.Mode == pglock.ModeShared && e.Place > 0 {
					slots[e.Slot] = true
				}
			}
			return len(slots) >= 3
		})
		if len(slots) != 3 || slots[0] {
			t.Errorf("grants of the slots %v", slots)
		}
	})
	t.Run("by a waiter that leaves", func(t *testing.T) {
		reader := mustAcquire(t, a, "left", pglock.WithShared())
		ctx, leave := context.WithCancel(t.Context())
		writer := make(chan error)
		go func() {
			_, err := a.Acquire(ctx, "left", pglock.WithTTL(time.Minute))
			writer <- err
		}()
		ofA.want(t, "left", "grant", "wait place 1")
		next := queueing(t, pool, "left", one, []string{"second reader"}, pglock.WithShared())
		leave()
		if err := <-writer; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		release(t, within(t, patience, "the second reader", next[0]))
		pgtest.Eventually(t, "a hand-over", func() bool {
			return slices.Contains(ofA.words("left"), "hand over 1")
		})
		release(t, reader)
	})
	t.Run("after a crash", func(t *testing.T) {
		dead := &observed{}
		c := startClient(t, pool, pglock.WithObserver(dead))
		l := mustAcquire(t, c, "crashed")
		change := func(what string) {
			t.Helper()
			must.Get(pool.Exec(t.Context(), "UPDATE pglock.locks SET "+what+" WHERE name = 'crashed'"))(t)
		}
		change("grant_id = pg_catalog.gen_random_uuid()") // the client cannot renew it any more
		next := queueing(t, pool, "crashed", one, []string{"next"})
		change("expires_at = pg_catalog.clock_timestamp()")
		release(t, within(t, patience, "next", next[0]))
		ofB.want(t, "crashed", "wait place 1", "grant place 1", "release")
		if err := l.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
			t.Fatal(err)
		}
		pgtest.Eventually(t, "the loss", func() bool {
			return len(dead.of(pglock.EventLost)) == 1 && len(dead.of(pglock.EventOutlived)) == 1
		})
	})
	t.Run("closed", func(t *testing.T) {
		closing := &observed{}
		c := startClient(t, pool, pglock.WithObserver(closing))
		mustAcquire(t, c, "closed")
		next := queueing(t, pool, "closed", one, []string{"next"})
		must.Do(t, c.Close(t.Context()))
		if got := closing.words("closed"); !slices.Equal(got, []string{"grant", "release", "hand over 1"}) {
			t.Errorf("Close has told of %q", got)
		}
		release(t, within(t, patience, "next", next[0]))
	})
	for _, o := range []*observed{ofA, ofB} {
		for _, e := range o.of(pglock.EventHandOver) {
			if e.Took <= 0 || e.Took > 20*time.Second {
				t.Errorf("a hand-over took %v", e.Took)
			}
		}
		for _, e := range o.of(pglock.EventGrant) {
			if e.Waited < 0 || e.Place > 0 && e.Waited == 0 {
				t.Errorf("grant %+v", e)
			}
		}
	}
}

func TestAcquireAllIsObservedForEachLock(t *testing.T) {
	t.Parallel()
	_, a, b, ofA, ofB := observing(t)
	all := must.Get(a.AcquireAll(t.Context(), []string{"y", "x"}))(t)
	must.Do(t, all.Release(t.Context()))
	ofA.want(t, "x", "grant", "release")
	ofA.want(t, "y", "grant", "release")
	held := mustAcquire(t, a, "z")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := must.Go(func() error { _, err := b.AcquireAll(ctx, []string{"x", "z", "zz"}); return err })
	ofB.want(t, "z", "wait place 1")
	cancel()
	if err := <-waited; !errors.Is(err, pglock.ErrHeld) {
		t.Fatal(err)
	}
	ofB.want(t, "x", "grant", "release")
	ofB.want(t, "z", "wait place 1", "failed place 1")
	ofB.want(t, "zz")
	if e := ofB.of(pglock.EventFailed)[0]; !errors.Is(e.Err, context.Canceled) || e.Waited <= 0 ||
		e.Waited > 20*time.Second {
		t.Errorf("event %+v", e)
	}
	release(t, held)
}

func TestBreakIsObservedAsALoss(t *testing.T) {
	t.Parallel()
	pool, a, _, ofA, _ := observing(t)
	l := mustAcquire(t, a, "report")
	must.Get(newAdmin(t, pool).Break(t.Context(), "report", "stuck", lockadmin.BreakOptions{}))(t)
	if _, err := l.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	ofA.want(t, "report", "grant", "lost broken")
	_ = l.Release(t.Context())
	ofA.want(t, "report", "grant", "lost broken", "outlived broken")
}

func TestNewConnectionsAreObserved(t *testing.T) {
	t.Parallel()
	pool, a, b, _, ofB := observing(t)
	mustAcquire(t, b, "kept", pglock.WithTTL(6*time.Second))
	held := mustAcquire(t, a, "report")
	next := queueing(t, pool, "report", []*pglock.Client{b}, []string{"next"})
	pgtest.Eventually(t, "the heartbeat", func() bool { return len(ofB.of(pglock.EventRenew)) > 0 })
	pgtest.Eventually(t, "the own connections are ended", func() (ended bool) {
		if err := pool.QueryRow(t.Context(), `SELECT pg_catalog.count(pg_catalog.pg_terminate_backend(pid)) > 0
			FROM pg_catalog.pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pglock %'
			AND query LIKE '%renew_leases%'`).Scan(&ended); err != nil {
			t.Fatal(err)
		}
		return ended
	})
	back := func(of string) func() bool {
		return func() bool {
			return slices.ContainsFunc(ofB.of(pglock.EventReconnect), func(e pglock.Event) bool {
				return e.Connection == of && e.Took > 0 && e.Err != nil
			})
		}
	}
	pgtest.Eventually(t, "a new connection of the heartbeat", back("heartbeat"))
	pgtest.Eventually(t, "a new connection of the listener", back("listener"))
	if polling := ofB.of(pglock.EventPolling); len(polling) == 0 || polling[0].Count != 1 || polling[0].Err == nil {
		t.Errorf("events %+v", polling)
	}
	release(t, held)
	release(t, within(t, 20*time.Second, "next", next[0]))
}

func TestListenerThatCannotConnectIsObservedAsPolling(t *testing.T) {
	t.Parallel()
	nowhere := must.Get(pgx.ParseConfig("host=127.0.0.1 port=1 user=nobody dbname=nothing sslmode=disable " +
		"password=hidden-word"))(t)
	pool, a, b, _, ofB := observing(t, pglock.WithListenConfig(nowhere))
	held := mustAcquire(t, a, "report")
	next := queueing(t, pool, "report", []*pglock.Client{b}, []string{"next"})
	pgtest.Eventually(t, "the second attempt", func() bool { return len(ofB.of(pglock.EventPolling)) > 1 })
	if e := ofB.of(pglock.EventPolling)[1]; e.Count != 2 || e.Took <= 0 || e.Connection != "listener" ||
		strings.Contains(e.Err.Error(), "hidden-word") {
		t.Errorf("event %+v", e)
	}
	release(t, held)
	release(t, within(t, 20*time.Second, "next", next[0]))
}

func TestLostStatementNamesAreObserved(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	var o observed
	c := startClient(t, pool, pglock.WithObserver(&o))
	release(t, mustAcquire(t, c, "report"))
	// as a pooler does it
	must.Get(pool.Exec(t.Context(), "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol))(t)
	release(t, mustAcquire(t, c, "report"))
	o.want(t, "report", "grant", "release", "grant", "release")
	if all := o.of(pglock.EventUnnamed); len(all) != 1 || all[0].Count != 1 || all[0].Took != 10*time.Second ||
		!strings.Contains(all[0].Err.Error(), "26000") {
		t.Errorf("events %+v", all)
	}
}

func TestEventsHaveNoSecrets(t *testing.T) {
	t.Parallel()
	pool, a, b, ofA, ofB := observing(t)
	l := mustAcquire(t, a, "report", pglock.WithMetadata([]byte(`{"private": "metadata"}`)))
	next := queueing(t, pool, "report", []*pglock.Client{b}, []string{"next"})
	grant := l.Export()
	must.Do(t, hooks.Of(l).Renew(t.Context()))
	must.Get(newAdmin(t, pool).Break(t.Context(), "report", "stuck", lockadmin.BreakOptions{}))(t)
	got := within(t, 20*time.Second, "next", next[0])
	second := got.Export()
	if _, err := l.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	_ = l.Release(t.Context())
	release(t, got)
	pgtest.Eventually(t, "the end", func() bool {
		return len(ofA.of(pglock.EventOutlived)) > 0 && len(ofB.of(pglock.EventRelease)) > 0
	})
	for _, e := range append(ofA.all(), ofB.all()...) {
		text := fmt.Sprintf("%+v %#v %v", e, e, e.Err)
		for _, secret := range []string{grant.ID.String(), second.ID.String(), "metadata"} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in the event %s", secret, text)
			}
		}
	}
}

// A call that leaves its release, or a hand-over, leaves it to the server: whoever it grants to is told all the same.
func TestI8_AReleaseWhoseCallHasLeftTellsTheNextOne(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(*pglock.Lease, context.Context) error{
		"release":   (*pglock.Lease).Release,
		"hand-over": func(l *pglock.Lease, ctx context.Context) error { return l.HandOver(ctx, "next") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			leaves(t, end)
		})
	}
}

func leaves(t *testing.T, end func(*pglock.Lease, context.Context) error) {
	t.Helper()
	pool, a, b, ofA, _ := observing(t)
	for _, sql := range []string{
		"CREATE TABLE arrived ()",
		`CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
			BEGIN
				WHILE NOT EXISTS (SELECT FROM public.arrived) LOOP PERFORM pg_sleep(0.01); END LOOP;
				RETURN NEW;
			END $$`,
	} {
		must.Get(pool.Exec(t.Context(), sql))(t)
	}
	l := mustAcquire(t, a, "left")
	next := queueing(t, pool, "left", []*pglock.Client{b}, []string{"next"})
	if _, err := pool.Exec(t.Context(), `CREATE TRIGGER stay BEFORE UPDATE ON pglock.locks
		FOR EACH ROW WHEN (OLD.name = 'left') EXECUTE FUNCTION stay()`); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := must.Go(func() error { return end(l, ctx) })
	pgtest.Eventually(t, "the release at work", func() (sleeps bool) {
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event = 'PgSleep')`).Scan(&sleeps)
		return err == nil && sleeps
	})
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want that the call has left", err)
	}
	must.Get(pool.Exec(t.Context(), "INSERT INTO arrived DEFAULT VALUES"))(t)
	release(t, within(t, 20*time.Second, "next", next[0]))
	pgtest.Eventually(t, "the hand-over in the events", func() bool {
		told := ofA.of(pglock.EventHandOver)
		return len(told) == 1 && told[0].Lock == "left" && told[0].Count == 1
	})
}
