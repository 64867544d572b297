package integration

import (
	"context"
	"errors"
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
	db := pgtest.Parallel(t)
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
	db := pgtest.Parallel(t)
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
	db := pgtest.Parallel(t)
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
	db := pgtest.Parallel(t)
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
// what lies below without its ticket, once. The ticket goes: nobody else would take it back or serve it any more.
func TestAGrantBelowItsOwnSubtreeLeavesNoTicket(t *testing.T) {
	t.Parallel()
	for kind, inner := range map[string]struct{ function, mode string }{
		"exclusive":      {"acquire_lease", ""},
		"shared":         {"acquire_lease", ", p_mode => 'shared'"},
		"a limit":        {"acquire_lease", ", p_mode => 'limit', p_capacity => 2"},
		"shared subtree": {"acquire_subtree", ", p_mode => 'shared'"},
	} {
		t.Run(kind, func(t *testing.T) {
			db := pgtest.Database(t)
			owner, other := newPeer(t, db.URL()), newPeer(t, db.URL())
			outer, id := uuid.New(), uuid.New()
			owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true, p_wait => true", uuid.New())
			before := other.mustSubtree(t, "t")
			if a := owner.request(t, inner.function, "t/b", id, owned+inner.mode); a.granted || a.ticket == 0 {
				t.Fatalf("below another's subtree: %+v", a)
			}
			for range 2 {
				owner.request(t, "acquire_subtree", "t", outer, owned)
			}
			other.mustEnd(t, before.grant)
			above := owner.request(t, "acquire_subtree", "t", outer, owned)
			if !above.granted {
				t.Fatalf("the subtree: %+v", above)
			}
			a := owner.request(t, inner.function, "t/b", id, owned+inner.mode)
			if tickets := one[int](t, other, `SELECT count(*) FROM pglock.waiters`); !a.granted || tickets != 0 {
				t.Errorf("below its own subtree: %+v, and %d tickets", a, tickets)
			}
			wantCount(t, other, 1, "I6: %d leases of one request run, want 1", `SELECT count(*) FROM pglock.locks
				WHERE grant_id = $1 AND expires_at > clock_timestamp()`, id.String())
			owner.mustEnd(t, a.grant)
			if held := one[bool](t, other, `SELECT coalesce(bool_or(held), false) FROM pglock.get_lock('t/b')`); held {
				t.Error("after its end the lease runs again")
			}
			owner.mustEnd(t, above.grant)
			other.mustSubtree(t, "t/b/c")
			if a := owner.request(t, "acquire_lease", "t/b/c/d", uuid.New(), owned+", p_mode => 'shared'"); a.granted {
				t.Errorf("I1: %+v below another's exclusive subtree", a)
			}
		})
	}
}

// The same where the subtree runs out while the lock below is being granted: the grant was decided before.
func TestAGrantBelowItsOwnSubtreeLeavesNoTicketWhenThatRunsOut(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, other := newPeer(t, db.URL()), newPeer(t, db.URL())
	outer, inner := uuid.New(), uuid.New()
	owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true", uuid.New())
	before := other.mustSubtree(t, "t")
	owner.request(t, "acquire_lease", "t/b", inner, owned+", p_wait => true")
	owner.request(t, "acquire_subtree", "t", outer, owned)
	other.mustEnd(t, before.grant)
	if a := owner.request(t, "acquire_subtree", "t", outer, owned); !a.granted {
		t.Fatalf("the subtree: %+v", a)
	}
	grantPaused(t, owner, "t/b", func() error {
		_, err := owner.Exec(t.Context(), `SELECT FROM pglock.acquire_lease('t/b', $1, $2, 'peer', '30 s', p_retry => true,
			p_wait => true`+owned+`)`, inner.String(), owner.key.String())
		return err
	}, func() {
		other.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 ms' WHERE name = 't'`)
	})
	wantCount(t, other, 0, "%d tickets are left beside the grant", `SELECT count(*) FROM pglock.waiters`)
}

// The owner of a subtree is let past the queue below it, and the subtree ends before the owner's request has looked at
// the tree. Then it is not granted: it asks again, and comes behind those who queue.
func TestI9_TheOwnerOfASubtreeThatEndsMeanwhilePassesNobody(t *testing.T) {
	t.Parallel()
	for end, sql := range map[string]string{
		"runs out": `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 ms' WHERE name = 't'`,
		"ends and is swept away": `UPDATE pglock.locks SET expires_at = '-infinity' WHERE name = 't';
			SELECT pglock.sweep()`,
	} {
		t.Run(end, func(t *testing.T) {
			db := pgtest.Database(t)
			owner, other := newPeer(t, db.URL()), newPeer(t, db.URL())
			outer, inner := uuid.New(), uuid.New()
			owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true", uuid.New())
			owner.request(t, "acquire_subtree", "t", outer, owned)
			if a := owner.request(t, "acquire_subtree", "t", outer, owned); !a.granted {
				t.Fatalf("the subtree: %+v", a)
			}
			first := other.queue(t, "t/b", uuid.New())
			err := pausedIn(t, owner, "t/b", "fits_tree", "LOCK TABLE locks",
				"PERFORM pause_here(w.name); LOCK TABLE locks", func() error {
					_, err := owner.Exec(t.Context(), `SELECT FROM pglock.acquire_lease('t/b', $1, $2, 'peer', '30 s',
						p_retry => true, p_wait => true`+owned+`)`, inner.String(), owner.key.String())
					return err
				}, func() { other.exec(t, sql) })
			if state(err) != "55P03" {
				t.Errorf("I9: %v, want 55P03: the subtree has ended, and somebody queues", err)
			}
			if a := owner.request(t, "acquire_lease", "t/b", inner, owned+", p_wait => true"); a.granted {
				t.Errorf("I9: %+v, before the first in the queue", a)
			}
			if a := other.queue(t, "t/b", first.id); !a.granted {
				t.Errorf("the first in the queue: %+v", a)
			}
		})
	}
}

// A try whose answer was lost is repeated, and its owner holds the lock by that very grant: it is no one that another
// goroutine of the owner holds. A subtree is granted at the second question, so also the first is a try like that.
func TestI6_ARepeatedTryOfAnOwnerGetsItsOwnGrant(t *testing.T) {
	db := pgtest.Parallel(t)
	owner := newPeer(t, db.URL())
	owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true, p_wait => false", uuid.New())
	owner.request(t, "acquire_lease", "outer", uuid.New(), owned)
	for function, name := range map[string]string{"acquire_lease": "a", "acquire_subtree": "t"} {
		id := uuid.New()
		owner.request(t, function, name, id, owned)
		first := owner.request(t, function, name, id, owned)
		if again := owner.request(t, function, name, id, owned); !again.granted || again.token != first.token {
			t.Errorf("%s: %+v, want the grant of before, %+v", function, again, first)
		}
	}
}

// A line of work queues below a subtree that another of its goroutines waits for, behind somebody else. When it has the
// subtree, everybody in that queue waits for it. Its next look says that it is the first: nobody else would tell it.
func TestATicketBelowItsOwnSubtreeIsToldToAsk(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, other := newPeer(t, db.URL()), newPeer(t, db.URL())
	outer := uuid.New()
	owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true", uuid.New())
	before := other.mustSubtree(t, "t")
	owner.request(t, "acquire_subtree", "t", outer, owned)
	other.request(t, "acquire_lease", "t/b", uuid.New(), ", p_owner_id => gen_random_uuid(), p_wait => true")
	inner := owner.request(t, "acquire_lease", "t/b", uuid.New(), owned+", p_wait => true")
	other.mustEnd(t, before.grant)
	if a := owner.request(t, "acquire_subtree", "t", outer, owned); !a.granted {
		t.Fatalf("the subtree: %+v", a)
	}
	var ahead int
	var circle *string
	if err := owner.QueryRow(t.Context(), `SELECT ahead, circle FROM pglock.look($1, 'peer', '30 s', ARRAY[$2::bigint])
		WHERE ticket = $2`, owner.key.String(), inner.ticket).Scan(&ahead, &circle); err != nil {
		t.Fatal(err)
	}
	if ahead != 0 || circle != nil {
		t.Errorf("%d are ahead of a ticket below its owner's subtree, and the circle is %v; want none", ahead, circle)
	}
	if a := owner.request(t, "acquire_lease", "t/b", inner.id, owned+", p_wait => true"); !a.granted {
		t.Errorf("below its own subtree: %+v", a)
	}
}

// Whoever holds a shared subtree and asks for an exclusive lease below it may come behind somebody who waits for just
// that subtree, and holds nothing else. The two wait for each other.
func TestCircleBehindAWaiterForOnesOwnSubtreeIsFound(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	owner, other := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	outer := mustTry(t, owner, "t/a", pglock.WithSubtree(), pglock.WithShared())
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), other, 0, "t/a/b", got)
	awaitQueue(t, look, "t/a/b", 1)
	ctx, cancel := context.WithTimeout(outer.Context(), patience)
	defer cancel()
	if _, err := owner.Acquire(ctx, "t/a/b"); !errors.Is(err, pglock.ErrDeadlock) {
		t.Fatalf("%v, want ErrDeadlock", err)
	}
	mustRelease(t, outer)
	mustRelease(t, served(t, got))
}

// The same is no circle where whoever waits comes after a subtree that is still to be granted to the one who asks.
func TestAWaiterBehindOnesOwnTicketAboveIsNoCircle(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, other, holder := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	held := holder.mustAcquire(t, "t/held", time.Minute)
	outer := uuid.New()
	owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true, p_mode => ", uuid.New())
	for range 2 {
		owner.request(t, "acquire_subtree", "t", outer, owned+"'shared'")
	}
	other.request(t, "acquire_lease", "t/b", uuid.New(), ", p_owner_id => gen_random_uuid(), p_wait => true")
	inner := owner.request(t, "acquire_lease", "t/b", uuid.New(), owned+"'exclusive', p_wait => true")
	circle := func() bool {
		return one[bool](t, owner, `SELECT circle IS NOT NULL FROM pglock.look($1, 'peer', '30 s', ARRAY[$2::bigint])
			WHERE ticket = $2`, owner.key.String(), inner.ticket)
	}
	if circle() {
		t.Error("a circle, while the subtree is still to be granted")
	}
	holder.mustEnd(t, held)
	if a := owner.request(t, "acquire_subtree", "t", outer, owned+"'shared'"); !a.granted || !circle() {
		t.Errorf("no circle when the subtree was granted: %+v", a)
	}
}

// Where that one holds locks itself, or wants a subtree, it is no circle either if the subtree to be granted is
// exclusive: whoever has that passes the queue below. Whoever has a shared one does not.
func TestAWaiterThatOnesOwnTicketAboveLetsOnePassIsNoCircle(t *testing.T) {
	t.Parallel()
	for kind, of := range map[string]struct {
		between, more, above string
		circle               bool
	}{
		"holds locks":                {"acquire_lease", ", p_nested => true", "exclusive", false},
		"wants a subtree":            {"acquire_subtree", "", "exclusive", false},
		"the subtree will be shared": {"acquire_lease", ", p_nested => true", "shared", true},
	} {
		t.Run(kind, func(t *testing.T) {
			db := pgtest.Database(t)
			owner, other, holder := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
			held := holder.mustAcquire(t, "t/held", time.Minute)
			owned := fmt.Sprintf(", p_owner_id => '%s', p_nested => true, p_wait => true", uuid.New())
			outer, above := uuid.New(), fmt.Sprintf("%s, p_mode => '%s'", owned, of.above)
			for range 2 {
				owner.request(t, "acquire_subtree", "t", outer, above)
			}
			other.request(t, of.between, "t/b", uuid.New(), ", p_owner_id => gen_random_uuid(), p_wait => true"+of.more)
			inner := owner.request(t, "acquire_lease", "t/b", uuid.New(), owned)
			if circle := one[bool](t, owner, `SELECT circle IS NOT NULL FROM pglock.look($1, 'peer', '30 s',
				ARRAY[$2::bigint]) WHERE ticket = $2`, owner.key.String(), inner.ticket); circle != of.circle {
				t.Errorf("a circle, while the subtree is still to be granted: %v, want %v", circle, of.circle)
			}
			holder.mustEnd(t, held)
			if a := owner.request(t, "acquire_subtree", "t", outer, above); !a.granted {
				t.Fatalf("the subtree: %+v", a)
			}
			if a := owner.request(t, "acquire_lease", "t/b", inner.id, owned); a.granted == of.circle {
				t.Errorf("below it, before who waits for it: %+v, and a circle: %v", a, of.circle)
			}
		})
	}
}

// Whoever waits below the ticket of a subtree is told when that is given up, also where the subtree's own name is held.
func TestASubtreesTicketThatIsGivenUpIsAnnouncedBesideAHolder(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, waits := newPeer(t, db.URL()), newPeer(t, db.URL())
	holder.mustAcquire(t, "t", time.Minute)
	for name, want := range map[string]bool{"t": true, "u": false} {
		id := uuid.New()
		if name == "t" {
			waits.subtree(t, name, id)
		} else {
			holder.mustAcquire(t, name, time.Minute)
			waits.queue(t, name, id)
		}
		if watched := one[bool](t, waits, `SELECT coalesce((more ->> 'watched')::boolean, false)
			FROM pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`, waits.key.String(), name, id.String()); watched != want {
			t.Errorf("%s: watched is %v, want %v", name, watched, want)
		}
	}
}
