package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// watch writes nothing where a subtree has marked the head. So the sweep that takes the mark away leaves whatever
// somebody may have asked for.
func TestTheSweepOfASubtreeEndsNoWatch(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newPeer(t, db.URL())
	held := p.mustSubtree(t, "t")
	for _, asked := range []string{"1 hour", "24 hours"} {
		p.exec(t, `SELECT FROM pglock.watch('t', $1)`, asked)
	}
	until := one[time.Time](t, p, `SELECT clock_timestamp() + interval '24 hours'`)
	p.mustEnd(t, held.grant)
	p.exec(t, `SELECT pglock.sweep()`)
	if !one[bool](t, p, `SELECT watched_until BETWEEN $1 AND clock_timestamp() + interval '24 hours' FROM pglock.locks
		WHERE name = 't'`, until) {
		t.Error("the sweep has ended a watch that was asked for, or left a mark for ever")
	}
}

// A sweep that finds the head locked leaves the mark of the subtree that it sweeps. That keeps nobody from pruning the
// lock, when no request for the subtree is left.
func TestTheMarkOfASubtreeKeepsNoLockFromBeingPruned(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p, busy := newPeer(t, db.URL()), newPeer(t, db.URL())
	p.mustEnd(t, p.mustSubtree(t, "t").grant)
	pruned := func() bool {
		p.prune(t)
		return one[int](t, p, `SELECT count(*) FROM pglock.locks WHERE name = 't'`) == 0
	}
	if pruned() {
		t.Fatal("a lock went whose subtree was not swept")
	}
	busy.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 't' FOR NO KEY UPDATE`) // as whoever renews its lease
	p.exec(t, `SELECT pglock.sweep()`)
	busy.exec(t, `COMMIT`)
	if !pruned() {
		t.Error("the lock stays for ever")
	}
}

// A request for a shared subtree joins the queue while a sweep takes the mark of an earlier one away. When it is
// granted its head is marked again, for as long as the subtree lasts.
func TestASharedSubtreeIsWatchedThoughItWasAskedForBesideASweep(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	holder, joins, sweeper := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	look, stop := newPeer(t, db.URL()), newPeer(t, db.URL())
	holder.mustEnd(t, holder.mustSubtree(t, "t").grant)
	held := holder.mustAcquire(t, "t", time.Minute)
	look.change(t, "sweep_subtrees", "gone := remove_ended(NULL, p_limit);", `gone := remove_ended(NULL, p_limit);
		WHILE NOT pg_try_advisory_xact_lock_shared(1) LOOP PERFORM pg_sleep(0.01); END LOOP;`)
	stop.exec(t, `SELECT pg_advisory_lock(1)`)
	swept := make(chan error, 1)
	go func() {
		_, err := sweeper.Exec(t.Context(), `SELECT pglock.sweep()`)
		swept <- err
	}()
	pgtest.Eventually(t, "the sweep to have removed what it may", func() bool {
		return one[bool](t, look, `SELECT coalesce(wait_event = 'PgSleep', false) FROM pg_stat_activity WHERE pid = $1`,
			sweeper.PgConn().PID())
	})
	id := uuid.New()
	joins.exec(t, `BEGIN`)
	if a := joins.request(t, "acquire_subtree", "t", id, ", p_mode => 'shared'"); a.granted || a.ticket == 0 {
		t.Fatalf("%+v", a)
	}
	joins.liftLimits(t)
	stop.exec(t, `SELECT pg_advisory_unlock(1)`)
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	joins.exec(t, `COMMIT`)
	holder.mustEnd(t, held)
	if a := joins.request(t, "acquire_subtree", "t", id, ", p_mode => 'shared'"); !a.granted {
		t.Fatalf("%+v", a)
	}
	if !one[bool](t, look, `SELECT watched_until = 'infinity' FROM pglock.locks WHERE name = 't' AND slot = 0`) {
		t.Error("the end of a shared subtree may be announced to nobody")
	}
}
