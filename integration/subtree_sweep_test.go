package integration

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// watch writes nothing where a subtree has marked the head. So the sweep that takes the mark away leaves whatever
// somebody may have asked for.
func TestTheSweepOfASubtreeEndsNoWatch(t *testing.T) {
	db := pgtest.Parallel(t)
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

// A sweep that finds the head locked leaves its mark, and with it the request that the next sweep finds it by.
func TestTheMarkOfASubtreeKeepsNoLockFromBeingPruned(t *testing.T) {
	db := pgtest.Parallel(t)
	p, busy := newPeer(t, db.URL()), newPeer(t, db.URL())
	p.mustEnd(t, p.mustSubtree(t, "t").grant)
	p.mustEnd(t, p.mustSubtree(t, "other").grant)
	if p.prune(t); one[int](t, p, `SELECT count(*) FROM pglock.locks WHERE name = 't'`) == 0 {
		t.Fatal("a lock went whose subtree was not swept")
	}
	left := func() string {
		p.exec(t, `SELECT pglock.sweep()`)
		return one[string](t, p, `SELECT coalesce(string_agg(name, ', '), 'none') FROM pglock.locks
			WHERE watched_until = 'infinity'`)
	}
	busy.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 't' FOR NO KEY UPDATE`) // as whoever renews its lease
	if got := left(); got != "t" {
		t.Errorf("a sweep beside a renewal has left the marks of %s, want t", got)
	}
	busy.exec(t, `COMMIT`)
	if got := left(); got != "none" {
		t.Errorf("the next sweep has left the marks of %s: they stay for ever", got)
	}
}

// A request for a shared subtree joins the queue while a sweep takes the mark of an earlier one away. When it is
// granted its head is marked again, for as long as the subtree lasts.
func TestASharedSubtreeIsWatchedThoughItWasAskedForBesideASweep(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, joins, sweeper := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	look, stop := newPeer(t, db.URL()), newPeer(t, db.URL())
	holder.mustEnd(t, holder.mustSubtree(t, "t").grant)
	held := holder.mustAcquire(t, "t", time.Minute)
	const find = "FROM ended_requests(NULL, p_limit) e;"
	look.change(t, "sweep_subtrees", find, find+`
		WHILE NOT pg_try_advisory_xact_lock_shared(1) LOOP PERFORM pg_sleep(0.01); END LOOP;`)
	stop.exec(t, `SELECT pg_advisory_lock(1)`)
	swept := must.Go(func() error { _, err := sweeper.Exec(t.Context(), `SELECT pglock.sweep()`); return err })
	pgtest.Eventually(t, "the sweep to have found what it may remove", func() bool {
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
	must.Do(t, <-swept)
	joins.exec(t, `COMMIT`)
	holder.mustEnd(t, held)
	if a := joins.request(t, "acquire_subtree", "t", id, ", p_mode => 'shared'"); !a.granted {
		t.Fatalf("%+v", a)
	}
	if !one[bool](t, look, `SELECT watched_until = 'infinity' FROM pglock.locks WHERE name = 't' AND slot = 0`) {
		t.Error("the end of a shared subtree may be announced to nobody")
	}
}

// joinedHead makes a lock that was held and is free, and whose head somebody has joined, in a transaction that goes on.
func joinedHead(t *testing.T, url, name string) (joins *peer) {
	t.Helper()
	joins = newPeer(t, url)
	joins.mustEnd(t, joins.mustAcquire(t, name, time.Minute))
	joins.exec(t, `BEGIN`)
	joins.exec(t, `SELECT FROM pglock.locks WHERE name = $1 AND slot = 0 FOR KEY SHARE`, name) // as who queues does
	return joins
}

// A request for a subtree that finds a free lock joined by somebody has no ticket, and has to ask again. It marks
// nothing: only a ticket's row in subtrees would end the mark.
func TestARequestForASubtreeWithoutATicketMarksNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	joins, other := joinedHead(t, db.URL(), "t"), newPeer(t, db.URL())
	id := uuid.New()
	a := other.request(t, "acquire_subtree", "t", id, ", p_wait => false")
	if a.granted || a.ticket != 0 || a.holder != "" {
		t.Fatalf("%+v, want neither a grant nor a ticket nor a holder", a)
	}
	if one[bool](t, other, `SELECT watched_until IS NOT NULL FROM pglock.locks WHERE name = 't'`) {
		t.Error("the lock is watched for ever for a request that has no ticket")
	}
	joins.exec(t, `COMMIT`)
	for range 2 {
		other.request(t, "acquire_subtree", "t", id, ", p_wait => false")
	}
	if !one[bool](t, other, `SELECT watched_until = 'infinity' AND grant_id = $1 FROM pglock.locks WHERE name = 't'`,
		id.String()) {
		t.Error("the subtree is not granted, or its end may be announced to nobody")
	}
}

// atSecond calls a function when the second statement with a text is about to be sent.
type atSecond struct {
	text string
	sent atomic.Int64
	then func()
}

func (s *atSecond) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, s.text) && s.sent.Add(1) == 2 {
		s.then()
	}
	return ctx
}

func (s *atSecond) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TryAcquire takes a free subtree though somebody joins its head at that moment.
func TestATryForAFreeSubtreeAsksAgainWhereSomebodyJoins(t *testing.T) {
	db := pgtest.Parallel(t)
	joins := joinedHead(t, db.URL(), "t")
	asked := &atSecond{text: ".acquire_subtree(", then: func() { joins.exec(t, `COMMIT`) }}
	c := newClient(t, db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = asked }))
	mustRelease(t, mustTry(t, c, "t", pglock.WithSubtree()))
	if n := asked.sent.Load(); n != 3 {
		t.Errorf("asked %d times, want 3: joined by somebody, the ticket, the grant", n)
	}
}
