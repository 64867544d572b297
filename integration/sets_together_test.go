package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// Requests for one lock that only queue are queued in one statement. Each is answered as it would be alone, whatever
// is among them.
func TestRequestsForOneLockQueueTogetherAsTheyWouldAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	look, m := newPeer(t, db.URL()), newMany(t, db.URL())
	type answered struct {
		answers []protocol.Answer
		code    string
		queued  int
	}
	for name, tc := range map[string]struct {
		change func(requests []protocol.Request)
		want   func(t *testing.T, a answered)
	}{
		"plain": {func([]protocol.Request) {}, func(t *testing.T, a answered) {
			for i, b := range a.answers {
				if b.Granted || b.Ticket == 0 || b.Place != i+1 || b.First != (i == 0) || b.Remaining < time.Minute ||
					b.Holder == "" || i > 0 && b.Ticket <= a.answers[i-1].Ticket {
					t.Errorf("request %d: %+v", i, b)
				}
			}
		}},
		"one of another mode": {func(r []protocol.Request) { r[1].Mode = "shared" }, func(t *testing.T, a answered) {
			if a.queued != 4 || a.answers[3].Place != 4 {
				t.Errorf("%d tickets, the last in place %d", a.queued, a.answers[3].Place)
			}
		}},
		"one that has a ticket": {func(r []protocol.Request) {
			if _, err := m.acquire(t, r[2:3]); err != nil {
				t.Error(err)
			}
			r[2].Retry = true
		}, func(t *testing.T, a answered) {
			if a.queued != 4 || a.answers[2].Place != 1 || a.answers[0].Place != 2 || a.answers[3].Place != 4 {
				t.Errorf("%d tickets: %+v", a.queued, a.answers)
			}
		}},
		"one twice": {func(r []protocol.Request) { r[2].GrantID = r[0].GrantID }, func(t *testing.T, a answered) {
			if a.queued != 3 || a.answers[2].Ticket != a.answers[0].Ticket || a.answers[2].Place != 1 {
				t.Errorf("%d tickets: %+v", a.queued, a.answers)
			}
		}},
		"all have tickets": {func(r []protocol.Request) {
			must.Get(m.acquire(t, r))(t)
			for i := range r {
				r[i].Retry = true
			}
		}, func(t *testing.T, a answered) {
			if a.code != "" || a.queued != 4 || a.answers[0].Place != 1 || a.answers[3].Place != 4 {
				t.Errorf("%s, %d tickets: %+v", a.code, a.queued, a.answers)
			}
		}},
		"one without a mode": {func(r []protocol.Request) { r[3].Mode = "" }, func(t *testing.T, a answered) {
			if a.code != "22023" || a.queued != 0 {
				t.Errorf("%s, and %d tickets", a.code, a.queued)
			}
		}},
		"one that was given up": {func(r []protocol.Request) {
			m.exec(t, `SELECT pglock.give_up($1, ARRAY[$2], ARRAY[$3]::uuid[], true)`, m.key, r[1].Name, r[1].GrantID)
		}, func(t *testing.T, a answered) {
			if a.code != "LK008" || a.queued != 0 {
				t.Errorf("%s, and %d tickets", a.code, a.queued)
			}
		}},
		"one with a ticket for another lock": {func(r []protocol.Request) {
			look.mustAcquire(t, r[1].Name+"-other", time.Hour)
			r[1].Name += "-other"
			if _, err := m.acquire(t, r[1:2]); err != nil {
				t.Error(err)
			}
			r[1].Name = r[0].Name
		}, func(t *testing.T, a answered) {
			if a.code != "22023" || a.queued != 0 {
				t.Errorf("%s, and %d tickets", a.code, a.queued)
			}
		}},
		"one with a holder too long": {func(r []protocol.Request) { r[3].Holder = strings.Repeat("x", 257) },
			func(t *testing.T, a answered) {
				if a.code != "22023" || a.queued != 0 {
					t.Errorf("%s, and %d tickets", a.code, a.queued)
				}
			}},
		"the holder's own": {func(r []protocol.Request) {
			m.exec(t, `UPDATE pglock.locks SET grant_id = $2 WHERE name = $1`, r[0].Name, r[1].GrantID)
			r[1].Retry = true
		}, func(t *testing.T, a answered) {
			if !a.answers[1].Granted || a.queued != 3 || a.answers[3].Place != 3 {
				t.Errorf("%d tickets: %+v", a.queued, a.answers)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			look.mustAcquire(t, name, time.Hour)
			requests := make([]protocol.Request, 4)
			for i := range requests {
				requests[i] = m.request(name, true)
				requests[i].Owner = uuid.New()
			}
			tc.change(requests)
			var a answered
			var err error
			a.answers, err = m.acquire(t, requests)
			a.code = state(err)
			a.queued = one[int](t, look, `SELECT count(*) FROM pglock.waiters WHERE name = $1`, name)
			tc.want(t, a)
		})
	}
}

// Many that join behind a lease which has just been released have no ticket, as nobody would serve it. They ask again.
func TestI8_ManyThatFindTheLockFreeAsTheyJoinAskAgain(t *testing.T) {
	db := pgtest.Parallel(t)
	look, m, ender := newPeer(t, db.URL()), newMany(t, db.URL()), newPeer(t, db.URL())
	patientCalls(t, look)
	patientTransactions(t, look)
	g := look.mustAcquire(t, "a", time.Hour)
	ender.exec(t, `BEGIN`)
	must.Get(ender.release(t.Context(), g))(t)
	requests := []protocol.Request{m.request("a", true), m.request("a", true)}
	answers := make([]protocol.Answer, len(requests))
	done := must.Go(func() error { return m.Run(t.Context(), m.Conn, m.Acquire(requests, answers)) })
	pgtest.Eventually(t, "the statement to wait for the head", func() bool {
		return one[bool](t, look, `SELECT cardinality(pg_blocking_pids($1)) > 0`, m.PgConn().PID())
	})
	ender.exec(t, `COMMIT`)
	must.Do(t, <-done)
	for i, a := range answers {
		if a.Granted || a.Ticket > 0 || a.Remaining > 0 {
			t.Errorf("I8: request %d is not told to ask again at once: %+v", i, a)
		}
	}
}

// Whoever has joined a lock's head takes it no more: what it ended then would be no change of the key for a COMMIT that
// follows the row's versions.
func TestI4_OfManyForOneLockNoneTakesTheHeadThatAnotherHasJoined(t *testing.T) {
	db := pgtest.Parallel(t)
	look, m, stop := newPeer(t, db.URL()), newMany(t, db.URL()), newPeer(t, db.URL())
	patientCalls(t, look)
	look.exec(t, `SET search_path = pglock, pg_temp`)
	look.change(t, "acquire_each", "locked := locked", "PERFORM pg_advisory_lock_shared(42); locked := locked")
	look.mustAcquire(t, "a", time.Hour)
	stop.exec(t, `SELECT pg_advisory_lock(42)`)
	requests := []protocol.Request{m.request("a", true), m.request("a", false), m.request("a", true)}
	requests[0].Mode = "shared"
	answers := make([]protocol.Answer, len(requests))
	done := must.Go(func() error { return m.Run(t.Context(), m.Conn, m.Acquire(requests, answers)) })
	pgtest.Eventually(t, "the first to have joined", func() bool {
		return one[bool](t, look, `SELECT cardinality(pg_blocking_pids($1)) > 0`, m.PgConn().PID())
	})
	look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'a'`)
	stop.exec(t, `SELECT pg_advisory_unlock(42)`)
	must.Do(t, <-done)
	for i, a := range answers {
		if a.Granted || len(a.Handed.Hints) > 0 || requests[i].Wait != (a.Ticket > 0) {
			t.Errorf("I4: request %d: %+v", i, a)
		}
	}
}

// A statement for many that has joined one lock's head does not wait long for whoever knocks at another's.
func TestI8_AStatementForManyGivesWayForAMomentOnly(t *testing.T) {
	db := pgtest.Parallel(t)
	look, m, knocking := newPeer(t, db.URL()), newMany(t, db.URL()), newPeer(t, db.URL())
	knocking.exec(t, `BEGIN; SET LOCAL search_path = pglock, pg_temp`)
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "b"}} {
		shortest := time.Hour
		for try := range 3 { // a busy machine takes its time too
			var requests []protocol.Request
			for _, name := range names {
				requests = append(requests, m.request(fmt.Sprint(name, len(names), try), true))
			}
			for _, r := range requests[:2] {
				look.mustAcquire(t, r.Name, time.Hour)
			}
			knocking.exec(t, `SELECT pg_advisory_xact_lock_shared(knock_key($1))`, requests[1].Name)
			began := time.Now()
			if _, err := m.acquire(t, requests); err != nil {
				t.Error(err)
			}
			shortest = min(shortest, time.Since(began))
		}
		if shortest >= time.Second {
			t.Errorf("%v: it gave way for %v at least", names, shortest)
		}
	}
}

// A grant that a statement for many repeats, and so renews, keeps it from nothing that had run out before.
func TestAStatementForManyThatRepeatsAGrantTakesOverWhatHasRunOut(t *testing.T) {
	db := pgtest.Parallel(t)
	look, m := newPeer(t, db.URL()), newMany(t, db.URL())
	again := m.request("a", false)
	if a, err := m.acquire(t, []protocol.Request{again}); err != nil || !a[0].Granted {
		t.Fatal(a, err)
	}
	again.Retry = true
	look.mustAcquire(t, "b", time.Hour)
	look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 s' WHERE name = 'b'`)
	answers := must.Get(m.acquire(t, []protocol.Request{again, m.request("b", false)}))(t)
	for i, a := range answers {
		if !a.Granted {
			t.Errorf("request %d is refused: %+v", i, a)
		}
	}
}

// The server has room for few advisory locks. What ends many leases takes none where nobody is in its way.
func TestWhoeverEndsThousandsOfLeasesFillsNoLockTable(t *testing.T) {
	t.Parallel()
	server := migrated(t, map[string]string{"max_connections": "10", "max_wal_senders": "0",
		"max_locks_per_transaction": "10"})
	look := newPeer(t, server.URL())
	look.exec(t, `CREATE TEMP TABLE held AS SELECT i AS n, 'n' || i AS name, gen_random_uuid() AS grant_id, 0::bigint AS token
		FROM generate_series(1, 2000) i`)
	acquire := func(mode string) {
		for part := range 200 { // one transaction has a second for all of its calls
			look.exec(t, `UPDATE held h SET token = (SELECT a.token FROM pglock.acquire_lease(h.name, h.grant_id, $1,
				'peer', '1 h', p_mode => $2) a) WHERE n % 200 = $3`, look.key, mode, part)
		}
	}
	acquire("shared")
	wantCount(t, look, 2000, "%d leases were released",
		`SELECT count(*) FROM (SELECT array_agg(name) AS names, array_agg(token) AS tokens,
		array_agg(grant_id) AS ids, array_agg(NULL::int) AS slots FROM held) h,
		pglock.release_leases(h.names, h.tokens, h.ids, h.slots) r WHERE r.released`)
	look.exec(t, `UPDATE held SET grant_id = gen_random_uuid()`)
	acquire("shared")
	wantCount(t, look, 2000, "%d leases were broken", `SELECT count(*) FROM pglock.break_session($1, 'test', 'test',
		p_limit => 10000)`, look.session())
	look.exec(t, `UPDATE held SET grant_id = gen_random_uuid()`)
	acquire("exclusive")
	wantCount(t, look, 2000, "%d leases were given up",
		`SELECT count(*) FROM (SELECT array_agg(name) AS names, array_agg(grant_id) AS ids
		FROM held) h, pglock.give_up($1, h.names, h.ids, true) g WHERE g.ended`, look.key)
}

// A release that comes too late locks nothing.
func TestWhoeverHasNoLeaseAnyMoreKeepsNobodyFromTheLock(t *testing.T) {
	db := pgtest.Parallel(t)
	late, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	g := late.mustAcquire(t, "a", time.Hour)
	must.Get(late.release(t.Context(), g))(t)
	late.exec(t, `BEGIN`)
	if must.Get(late.release(t.Context(), g))(t) {
		t.Error("it is released twice")
	}
	look.mustAcquire(t, "a", time.Hour)
}

// A NULL beside a plain request is refused by its rule, and not by a table's.
func TestRequestsForOneLockOfWhichOneIsNullAreRefused(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	look.mustAcquire(t, "a", time.Hour)
	for what, change := range map[string][3]string{"holder": {"{h,NULL}", "{1 s,1 s}", "{exclusive,exclusive}"},
		"ttl": {"{h,h}", "{1 s,NULL}", "{exclusive,exclusive}"}, "mode": {"{h,h}", "{1 s,1 s}", "{exclusive,NULL}"}} {
		_, err := look.Exec(t.Context(), `SELECT FROM pglock.acquire_leases('{a,a}', ARRAY[gen_random_uuid(),
			gen_random_uuid()], $1, $2, $3, '{NULL,NULL}', '{f,f}', $4, '{NULL,NULL}', '{t,t}', '1 min',
			ARRAY[NULL, NULL]::uuid[], '{f,f}')`, pgx.QueryExecModeExec, look.key, change[0], change[1], change[2])
		if state(err) != "22023" || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Whoever holds a subtree is granted what lies below it, also behind one that queues for it in the same statement.
func TestTheOwnerOfASubtreePassesWhoeverQueuesInTheSameStatement(t *testing.T) {
	db := pgtest.Parallel(t)
	m := newMany(t, db.URL())
	owner := uuid.New()
	m.mustSubtree(t, "t")
	m.exec(t, `UPDATE pglock.locks SET owner_id = $1 WHERE name = 't'`, owner)
	for _, waits := range []bool{true, false} {
		requests := []protocol.Request{m.request("t/x", true), m.request("t/x", waits)}
		requests[0].Owner, requests[1].Owner, requests[1].Nested = uuid.New(), owner, true
		answers := must.Get(m.acquire(t, requests))(t)
		if answers[0].Granted || answers[0].Ticket == 0 || !answers[1].Granted {
			t.Errorf("waits %v: %+v", waits, answers)
		}
		m.release(t, []protocol.Claim{claimOf(requests[1], answers[1])})
	}
	joined := newPeer(t, db.URL())
	joined.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 't/x' AND slot = 0 FOR KEY SHARE`) // as to queue
	for _, waits := range []bool{true, false} {
		requests := []protocol.Request{m.request("t/x", true), m.request("t/x", waits)}
		requests[0].Owner, requests[1].Owner, requests[1].Nested, requests[1].Retry = uuid.New(), owner, true, true
		_, err := m.acquire(t, requests)
		if state(err) != "55P03" || !strings.Contains(err.Error(), "the row of lock") {
			t.Errorf("waits %v: beside somebody who joins: %v", waits, err)
		}
	}
}
