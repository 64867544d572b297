package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// Whoever holds a subtree is granted what lies below it at once, also while somebody waits for a subtree above. That
// one has seen the owner's subtree then, and waits for what the owner has below it, too, when the subtree ends first.
func TestSubtreeIsNotGrantedOverWhatAnOwnerWasGrantedBelowItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	owner, other := newPeer(t, db.URL()), newPeer(t, db.URL())
	line := uuid.New()
	first, second, above := uuid.New(), uuid.New(), uuid.New()
	owned := func(nested bool) string { return fmt.Sprintf(", p_owner_id => '%s', p_nested => %v", line, nested) }
	owner.request(t, "acquire_subtree", "a/x", first, owned(false))
	outer := owner.request(t, "acquire_subtree", "a/x", first, owned(false))
	other.subtree(t, "a", above)
	if a := other.subtree(t, "a", above); !outer.granted || a.granted || a.by != "a/x" {
		t.Fatalf("the owner: %+v; who waits above: %+v", outer, a)
	}
	inner := owner.request(t, "acquire_lease", "a/x/y", second, owned(true))
	if !inner.granted {
		t.Fatalf("below its own subtree: %+v", inner)
	}
	owner.mustEnd(t, outer.grant)
	if a := other.subtree(t, "a", above); a.granted || a.by != "a/x/y" {
		t.Errorf("above what the owner still has: %+v", a)
	}
	owner.mustEnd(t, inner.grant)
	if a := other.subtree(t, "a", above); !a.granted {
		t.Errorf("when nothing is below any more: %+v", a)
	}
}

// Whoever waits for a subtree is not kept from it by what its own owner has below. So the owner hands none of that over
// to others meanwhile: the subtree may be granted at that moment.
func TestNobodyHandsOverBelowASubtreeThatItsOwnerWaitsFor(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	owner, other := newPeer(t, db.URL()), newPeer(t, db.URL())
	line := fmt.Sprintf(", p_owner_id => '%s', p_nested => ", uuid.New())
	inner := owner.request(t, "acquire_lease", "a/b", uuid.New(), line+"false")
	kept := other.mustAcquire(t, "a/c", time.Minute)
	above := uuid.New()
	owner.request(t, "acquire_subtree", "a", above, line+"true")
	if a := owner.request(t, "acquire_subtree", "a", above, line+"true"); a.granted || a.by != "a/c" {
		t.Fatalf("%+v", a)
	}
	behind := other.queue(t, "a/b", uuid.New())
	if outcome := one[string](t, owner, `SELECT outcome FROM pglock.hand_over('a/b', $1, $2, 'peer')`, inner.token,
		inner.id.String()); outcome != "nobody" {
		t.Errorf("%s", outcome)
	}
	other.mustEnd(t, kept)
	if a := owner.request(t, "acquire_subtree", "a", above, line+"true"); !a.granted {
		t.Errorf("%+v", a)
	}
	if a := other.queue(t, "a/b", behind.id); a.granted {
		t.Errorf("%+v below a subtree", a)
	}
}

// A request for a subtree removes what earlier ones for it have left: otherwise each grant below would read all that
// until somebody sweeps.
func TestASubtreeLeavesNoTrailForThoseBelow(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	look.mustSubtree(t, "kept")
	for range 30 {
		look.mustEnd(t, look.mustSubtree(t, "t").grant)
	}
	if n := one[int](t, look, `SELECT count(*) FROM pglock.subtrees`); n > 2 {
		t.Errorf("%d rows are left, want one for each name at most", n)
	}
}

// Whoever holds a subtree queues behind nobody below it, also where somebody is about to queue for the lock at that
// moment: those who queue there wait for the subtree itself.
func TestTheOwnerOfASubtreeQueuesBehindNobodyBelow(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c, behind, joins, look := newClient(t, db.Pool(t)), newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	outer := mustTry(t, c, "t", pglock.WithSubtree())
	for kind, opts := range kindsOfLeases {
		behind.queue(t, "t/a", uuid.New())
		joins.exec(t, `BEGIN`)
		joins.exec(t, `SELECT FROM pglock.locks WHERE name = 't/a' AND slot = 0 FOR KEY SHARE`) // as who queues does
		got := make(chan fetched, 1)
		acquireInBackground(outer.Context(), c, 0, "t/a", got, opts...)
		pgtest.Eventually(t, "the owner to wait for who queues", func() bool {
			return one[bool](t, look, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))`,
				joins.PgConn().PID())
		})
		joins.exec(t, `COMMIT`)
		f := await(t, got)
		if f.err != nil {
			t.Fatalf("%s: %v", kind, f.err)
		}
		mustRelease(t, f.lease)
	}
	mustRelease(t, outer)
}

// A line of work queues below a subtree that another of its goroutines waits for. When it has the subtree it is granted
// what lies below without its ticket. The ticket goes: nobody else would take it back or serve it any more.
func TestAGrantBelowItsOwnSubtreeLeavesNoTicket(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	owner, other := newPeer(t, db.URL()), newPeer(t, db.URL())
	line, outer, inner := uuid.New(), uuid.New(), uuid.New()
	owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true", line)
	before := other.mustSubtree(t, "t")
	if a := owner.request(t, "acquire_lease", "t/b", inner, owned+", p_wait => true"); a.granted || a.ticket == 0 {
		t.Fatalf("below another's subtree: %+v", a)
	}
	for range 2 {
		owner.request(t, "acquire_subtree", "t", outer, owned)
	}
	other.mustEnd(t, before.grant)
	if a := owner.request(t, "acquire_subtree", "t", outer, owned); !a.granted {
		t.Fatalf("the subtree: %+v", a)
	}
	a := owner.request(t, "acquire_lease", "t/b", inner, owned+", p_wait => true")
	if tickets := one[int](t, other, `SELECT count(*) FROM pglock.waiters`); !a.granted || tickets != 0 {
		t.Errorf("below its own subtree: %+v, and %d tickets", a, tickets)
	}
	owner.mustEnd(t, a.grant)
	if held := one[bool](t, other, `SELECT coalesce(bool_or(held), false) FROM pglock.get_lock('t/b')`); held {
		t.Error("after its end the lease runs again")
	}
}
