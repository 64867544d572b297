package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// Requests for a tree are served in the order of their tickets, whatever they want of it.
func TestI9_ATreeIsServedInTicketOrder(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	first := mustTry(t, newClient(t, db.Pool(t)), "t/a", pglock.WithSubtree())
	wants := []struct {
		name string
		kind string
	}{
		{"t", "exclusive subtree"}, {"t/a", "exclusive subtree"}, {"t/a/b", "exclusive subtree"},
		{"t/a", "shared subtree"}, {"t", "exclusive subtree"}, {"t/a/b", "limit"}, {"t", "exclusive subtree"},
		{"t/a/b", "shared"}, {"t", "exclusive subtree"},
	}
	got := make(chan fetched, len(wants))
	for n, w := range wants {
		before := one[int](t, look, `SELECT count(*) FROM pglock.waiters`)
		c := newClient(t, db.Pool(t), pglock.WithSessionTTL(time.Hour)) // however slow the machine is
		acquireInBackground(t.Context(), c, n, w.name, got, kindsOfLeases[w.kind]...)
		pgtest.Eventually(t, "the request to be queued", func() bool {
			return one[int](t, look, `SELECT count(*) FROM pglock.waiters`) == before+1
		})
	}
	mustRelease(t, mustTry(t, newClient(t, db.Pool(t)), "u/a")) // elsewhere nobody waits
	mustRelease(t, first)
	token := first.Token()
	open := make(map[int]*pglock.Lease) // what is held together
	for range wants {
		f := await(t, got)
		if f.err != nil {
			t.Fatal(f.err)
		}
		if f.lease.Token() <= token {
			t.Errorf("request %d has token %d after %d", f.n, f.lease.Token(), token)
		}
		token = f.lease.Token()
		if f.n != len(open) {
			t.Errorf("request %d (%v) was granted as number %d", f.n, wants[f.n], len(open))
		}
		open[f.n] = f.lease
		mustRelease(t, f.lease)
	}
}

// A subtree does not starve behind a stream of requests below it, nor they behind a stream of subtrees.
func TestI9_NobodyStarvesInATree(t *testing.T) {
	db := pgtest.Parallel(t)
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 6)
	for n := range cap(over) {
		c := newClient(t, db.Pool(t))
		go func() {
			for round := 0; ; round++ { // never without a request
				l, err := c.Acquire(ctx, fmt.Sprintf("t/%d/%d", n%3, round%2))
				if err != nil {
					over <- err
					return
				}
				if err := l.Release(context.WithoutCancel(ctx)); err != nil {
					over <- err
					return
				}
			}
		}()
	}
	c := newClient(t, db.Pool(t))
	for range 20 {
		within, cancel := context.WithTimeout(t.Context(), patience)
		l, err := c.Acquire(within, "t", pglock.WithSubtree())
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		mustRelease(t, l)
	}
	stop()
	for range cap(over) {
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// Circles that a subtree closes are found: the newest request in it fails.
func TestCirclesThroughSubtreesAreFound(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	a, b := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	t.Run("two owners", func(t *testing.T) {
		p, q := mustTry(t, a, "p", pglock.WithSubtree()), mustTry(t, b, "q/x")
		got := make(chan fetched, 2)
		acquireInBackground(p.Context(), a, 0, "q", got, pglock.WithSubtree())
		awaitQueue(t, look, "q", 1)
		_, err := b.Acquire(q.Context(), "p/y/z")
		circle, is := errors.AsType[*pglock.DeadlockError](err)
		if !is || len(circle.Circle) != 2 {
			t.Fatalf("%v, want a circle of two", err)
		}
		mustRelease(t, q)
		mustRelease(t, served(t, got), p)
	})
	t.Run("behind a subtree that waits for the one who asks", func(t *testing.T) {
		mine := mustTry(t, a, "t/a")
		got := make(chan fetched, 2)
		acquireInBackground(t.Context(), b, 0, "t", got, pglock.WithSubtree())
		awaitQueue(t, look, "t", 1)
		if _, err := a.Acquire(mine.Context(), "t/b"); !errors.Is(err, pglock.ErrDeadlock) {
			t.Fatalf("%v, want ErrDeadlock", err)
		}
		mustRelease(t, mine)
		mustRelease(t, served(t, got))
	})
}

// A subtree that is given up, or whose client dies while it waits, is in nobody's way any more.
func TestASubtreeThatEndsLetsThoseBelowIn(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(c *pglock.Client, cancel context.CancelFunc) error{
		"its wait is cancelled": func(_ *pglock.Client, cancel context.CancelFunc) error { cancel(); return nil },
		"its client is closed": func(c *pglock.Client, _ context.CancelFunc) error {
			return c.Close(context.Background())
		},
	} {
		t.Run(what, func(t *testing.T) {
			db := pgtest.Parallel(t)
			look := newPeer(t, db.URL())
			a, b, leaving := newClient(t, db.Pool(t)), newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
			held := mustTry(t, a, "t/held")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			gone, got := make(chan fetched, 1), make(chan fetched, 1)
			acquireInBackground(ctx, leaving, 0, "t", gone, pglock.WithSubtree())
			awaitQueue(t, look, "t", 1)
			acquireInBackground(t.Context(), b, 1, "t/free", got)
			awaitQueue(t, look, "t/free", 1)
			must.Note(t, end(leaving, cancel))
			f := await(t, got)
			if f.err != nil {
				t.Fatal(f.err)
			}
			if f := await(t, gone); f.err == nil {
				t.Errorf("%v beside %v", f.lease, held)
			}
			mustRelease(t, f.lease, held)
		})
	}
	t.Run("its client is dead", func(t *testing.T) {
		db := pgtest.Parallel(t)
		c, dead := newClient(t, db.Pool(t)), newPeer(t, db.URL())
		held := mustTry(t, c, "t/held")
		if a := dead.request(t, "acquire_subtree", "t", uuid.New(), ", p_session_ttl => '300 ms'"); a.granted {
			t.Fatalf("%+v", a)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		l := must.Get(c.Acquire(ctx, "t/free"))(t)
		mustRelease(t, l, held)
	})
}

// A break ends a subtree, and a lease below one that waits.
func TestI10_BreaksEndWhatIsInTheWayInATree(t *testing.T) {
	db := pgtest.Parallel(t)
	look, admin := newPeer(t, db.URL()), newAdmin(t, db.Pool(t))
	a, b := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	below := mustTry(t, a, "t/a")
	got := make(chan fetched, 2)
	acquireInBackground(t.Context(), b, 0, "t", got, pglock.WithSubtree())
	awaitQueue(t, look, "t", 1)
	must.Get(admin.Break(t.Context(), "t/a", "test", lockadmin.BreakOptions{}))(t)
	above := await(t, got)
	if above.err != nil {
		t.Fatal(above.err)
	}
	acquireInBackground(t.Context(), a, 1, "t/a", got)
	awaitQueue(t, look, "t/a", 1)
	must.Get(admin.Break(t.Context(), "t", "test", lockadmin.BreakOptions{}))(t)
	next := await(t, got)
	if next.err != nil || next.lease.Token() <= above.lease.Token() || above.lease.Token() <= below.Token() {
		t.Fatal(next.lease, next.err)
	}
	mustRelease(t, next.lease)
}

// A holder hands a subtree over to another request for it, and a lock below to whoever waits for that; but never a lock
// below its own subtree to somebody else.
func TestHandOversInATree(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	a, b := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	got := make(chan fetched, 3)
	outer := mustTry(t, a, "t", pglock.WithSubtree())
	acquireInBackground(t.Context(), b, 0, "t", got, pglock.WithSubtree(), pglock.WithHolder("first"))
	awaitQueue(t, look, "t", 1)
	acquireInBackground(t.Context(), b, 1, "t", got, pglock.WithSubtree(), pglock.WithHolder("chosen"))
	awaitQueue(t, look, "t", 2)
	pgtest.Eventually(t, "both to have waited for grants under way", func() bool {
		return one[bool](t, look, `SELECT bool_and(waited) FROM pglock.subtrees WHERE ticket IN (SELECT ticket FROM
			pglock.waiters)`)
	})
	inner := must.Get(a.TryAcquire(outer.Context(), "t/x"))(t)
	if err := outer.HandOver(t.Context(), "chosen"); !errors.Is(err, pglock.ErrNoWaiter) {
		t.Errorf("%v, want ErrNoWaiter: a lease below goes on", err)
	}
	acquireInBackground(t.Context(), b, 2, "t/x", got, pglock.WithHolder("below"))
	awaitQueue(t, look, "t/x", 1)
	if err := inner.HandOver(t.Context(), "below"); !errors.Is(err, pglock.ErrNoWaiter) {
		t.Errorf("%v, want ErrNoWaiter: the subtree above is somebody else's", err)
	}
	mustRelease(t, inner)
	must.Do(t, outer.HandOver(t.Context(), "chosen"))
	for _, want := range []int{1, 0, 2} {
		f := await(t, got)
		if f.err != nil || f.n != want {
			t.Fatalf("%d was granted, want %d: %v", f.n, want, f.err)
		}
		mustRelease(t, f.lease)
	}
	// below a subtree that waits, a holder chooses its successor as ever
	below := mustTry(t, a, "t/x")
	acquireInBackground(t.Context(), b, 0, "t", got, pglock.WithSubtree())
	awaitQueue(t, look, "t", 1)
	acquireInBackground(t.Context(), b, 1, "t/x", got, pglock.WithHolder("below"))
	awaitQueue(t, look, "t/x", 1)
	must.Do(t, below.HandOver(t.Context(), "below"))
	f := await(t, got)
	if f.err != nil || f.n != 1 {
		t.Fatal(f.n, f.err)
	}
	mustRelease(t, f.lease)
	if f = await(t, got); f.err != nil || f.n != 0 {
		t.Fatal(f.n, f.err)
	}
	mustRelease(t, f.lease)
}

// What requests for subtrees leave in the tables is swept away, and then nobody looks there any more.
func TestWhatSubtreesLeaveIsSwept(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	state := func() string {
		return one[string](t, look, `SELECT concat_ws(' ', (SELECT subtrees FROM pglock.installation), (SELECT count(*)
			FROM pglock.subtrees), (SELECT count(*) FROM pglock.locks WHERE watched_until = 'infinity'))`)
	}
	a := look.mustSubtree(t, "t")
	other := look.mustSubtree(t, "u")
	look.exec(t, `SELECT pglock.sweep()`)
	if got := state(); got != "t 2 2" {
		t.Errorf("%s, want what is held to stay", got)
	}
	look.mustEnd(t, a.grant)
	waits := uuid.New()
	look.queue(t, "u/a", waits)
	look.exec(t, `SELECT pglock.sweep()`)
	if got := state(); got != "t 1 1" {
		t.Errorf("%s, want one", got)
	}
	look.mustEnd(t, other.grant)
	another := newPeer(t, db.URL())
	another.exec(t, `BEGIN`)
	another.subtree(t, "v", uuid.New()) // not committed: nobody may note that there are none
	look.exec(t, `SELECT pglock.sweep()`)
	another.exec(t, `COMMIT`)
	if got := state(); got != "t 1 1" {
		t.Errorf("%s, want that of v", got)
	}
	another.exec(t, `DELETE FROM pglock.waiters WHERE name = 'v'`)
	look.exec(t, `SELECT pglock.sweep()`)
	if got := state(); got != "f 0 0" {
		t.Errorf("%s, want nothing", got)
	}
	if got, err := another.acquire(t.Context(), "u/a", uuid.New(), time.Minute, false); err != nil || got.granted {
		t.Errorf("%+v, %v: a newcomer overtakes who has waited for a subtree that is swept", got, err)
	}
	if got := look.queue(t, "u/a", waits); !got.granted {
		t.Errorf("%+v", got)
	}
}

// Only a change tells those who wait around a subtree to ask. If refusals did, two that wait would tell each other for
// as long as they wait.
func TestARefusalTellsNobodyAroundASubtreeToAsk(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	holder := mustTry(t, newClient(t, db.Pool(t)), "t/a/b")
	watched := func(function, name string, id uuid.UUID) bool {
		t.Helper()
		return one[bool](t, p, `SELECT more ->> 'watched' IS NOT NULL FROM pglock.`+function+
			`($1, $2, $3, 'peer', '30 s', p_retry => true, p_wait => true)`, name, id.String(), p.key.String())
	}
	names, ids := []string{"t", "t/a"}, []uuid.UUID{uuid.New(), uuid.New()}
	for range 2 { // the second time each looks below
		for i, name := range names {
			p.subtree(t, name, ids[i])
		}
	}
	for i, name := range names {
		if watched("acquire_subtree", name, ids[i]) {
			t.Errorf("the refusal of the subtree %q is to be announced", name)
		}
		if watched("acquire_lease", name, uuid.New()) {
			t.Errorf("the refusal of %q, for which a subtree waits, is to be announced", name)
		}
	}
	mustRelease(t, holder)
	if !watched("acquire_subtree", "t", ids[0]) {
		t.Error("the grant of a subtree is not to be announced")
	}
}
