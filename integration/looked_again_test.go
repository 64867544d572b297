package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// The owner of a subtree that runs out may have been granted another below it, in a transaction that ends after a
// stranger has looked and before he settles the first: he looks again.
func TestI1_WhoeverSettlesASubtreeLooksAgainForWhatItsOwnerHasBelow(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, late, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	stop := newPeer(t, db.URL())
	line := uuid.New()
	owned := func(nested bool) string { return fmt.Sprintf(", p_owner_id => '%s', p_nested => %v", line, nested) }
	outer := uuid.New()
	owner.request(t, "acquire_subtree", "t", outer, owned(false))
	if a := owner.request(t, "acquire_subtree", "t", outer, owned(false)); !a.granted {
		t.Fatalf("%+v", a)
	}
	look.exec(t, `CREATE FUNCTION pglock.stay_here() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
		WHILE NOT pg_try_advisory_xact_lock_shared(1) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN true; END $$`)
	look.change(t, "settled", "PERFORM settle(p_name)", "PERFORM stay_here(); PERFORM settle(p_name)")
	stop.exec(t, `SELECT pg_advisory_lock(1)`)
	owner.exec(t, `BEGIN`)
	if a := owner.request(t, "acquire_subtree", "t/a", uuid.New(), owned(true)); !a.granted {
		t.Fatalf("below its own: %+v", a)
	}
	owner.liftLimits(t)
	look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 ms' WHERE name = 't'`)
	var got grant
	ended := make(chan error, 1)
	pgtest.Group(t).Go(func() {
		var err error
		got, err = late.acquire(t.Context(), "t/a/b", uuid.New(), time.Minute, false)
		ended <- err
	})
	pgtest.Eventually(t, "the stranger to have looked", func() bool {
		return one[bool](t, look, `SELECT coalesce(wait_event = 'PgSleep', false) FROM pg_stat_activity WHERE pid = $1`,
			late.PgConn().PID())
	})
	owner.exec(t, `COMMIT`)
	stop.exec(t, `SELECT pg_advisory_unlock(1)`)
	if err := <-ended; err != nil || got.granted {
		t.Errorf("%+v, %v: granted below a subtree that somebody else holds", got, err)
	}
}

// A session that has been silent for long is swept while its client queues again: the ticket counts all the same.
func TestI9_ATicketCountsThoughItsOldSessionIsSweptMeanwhile(t *testing.T) {
	t.Parallel()
	for _, way := range queueing {
		db := pgtest.Database(t)
		holder, first, second := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
		sweeper := newPeer(t, db.URL())
		patientWaits(t, sweeper)
		held := holder.mustAcquire(t, "x", time.Minute)
		sweeper.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until, seen_at)
			VALUES ($1, 'h', now() - interval '2 min', now() - interval '2 min')`, first.session())
		sweeper.exec(t, `BEGIN`)
		sweeper.exec(t, `SELECT pglock.sweep()`)
		sweeper.liftLimits(t)
		id, queued := uuid.New(), make(chan error, 1)
		pgtest.Group(t).Go(func() {
			_, err := first.Exec(t.Context(), way, id.String(), first.key.String())
			queued <- err
		})
		pgtest.Eventually(t, "the request to wait for the sweep", func() bool {
			return len(queued) > 0 || one[int](t, holder, `SELECT cardinality(pg_blocking_pids($1))`,
				first.PgConn().PID()) > 0
		})
		sweeper.exec(t, `COMMIT`)
		must.Do(t, <-queued)
		second.queue(t, "x", uuid.New())
		holder.mustEnd(t, held)
		if got := one[string](t, holder, `SELECT grant_id::text FROM pglock.locks WHERE name = 'x'`); got != id.String() {
			t.Error("the first in the queue was passed over")
		}
	}
}

// Two connections of one client queue while their old session is swept. Whoever comes second finds that the first has
// written the session anew, and goes on.
func TestI9_TwoQueueThoughTheirOldSessionIsSweptMeanwhile(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, client, sweeper := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	sweeper.exec(t, `ALTER FUNCTION pglock.outlive_session SET lock_timeout = '1min'`) // a slow machine is no reason
	sweeper.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until, seen_at)
		VALUES ($1, 'h', now() - interval '2 min', now() - interval '2 min')`, client.session())
	sweeper.exec(t, `BEGIN`)
	sweeper.exec(t, `SELECT pglock.sweep()`)
	sweeper.liftLimits(t)
	type request struct {
		by  *peer
		err error
	}
	queued := make(chan request, 2)
	requests := pgtest.Group(t)
	for _, name := range []string{"x", "y"} {
		holder.mustAcquire(t, name, time.Minute)
		p := newPeer(t, db.URL())
		p.exec(t, `BEGIN`)
		requests.Go(func() {
			_, err := p.Exec(t.Context(), `SELECT FROM pglock.acquire_lease($1, $2, $3, 'peer', '30 s', p_wait => true)`,
				name, uuid.NewString(), client.key.String())
			queued <- request{p, err}
		})
		p.awaitBlocked(t, holder)
	}
	sweeper.exec(t, `COMMIT`)
	first := <-queued
	if first.err != nil {
		t.Fatal(first.err)
	}
	first.by.liftLimits(t)
	pgtest.Eventually(t, "the second to wait for the first", func() bool {
		return len(queued) > 0 || one[bool](t, holder, `SELECT EXISTS (SELECT FROM pg_stat_activity a
			WHERE a.datname = current_database() AND $1 = ANY (pg_blocking_pids(a.pid)))`, first.by.PgConn().PID())
	})
	first.by.exec(t, `COMMIT`)
	if second := <-queued; second.err != nil {
		t.Error(second.err)
	}
}

func TestI9_AReleaseOfManyServesTheQueueWhateverItsArraysLookLike(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, waiter, newcomer := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	for name, arrays := range map[string]string{
		"two dimensions": `ARRAY[ARRAY[$1::text]], ARRAY[ARRAY[$2::bigint]], ARRAY[ARRAY[$3::uuid]], ARRAY[ARRAY[0]]`,
		"from 0 on": `('[0:0]={"' || $1::text || '"}')::text[], ('[0:0]={' || $2::bigint || '}')::bigint[],
			('[0:0]={' || $3::uuid || '}')::uuid[], '[0:0]={0}'::int[]`,
	} {
		g := holder.mustAcquire(t, name, time.Minute)
		waiter.queue(t, name, uuid.New())
		holder.exec(t, `SELECT * FROM pglock.release_leases(`+arrays+`)`, name, g.token, g.id.String())
		a, err := newcomer.acquire(t.Context(), name, uuid.New(), time.Minute, false)
		if err != nil || a.granted {
			t.Errorf("%s: %+v, %v: a newcomer passes whoever waits", name, a, err)
		}
	}
}

// A month is as long as it is in UTC, or another session would find a key forgotten that this one keeps.
func TestAKeyIsKeptForAsLongInEveryTimeZone(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	g := p.mustAcquire(t, "l", time.Minute)
	for _, zone := range []string{"UTC", "Etc/GMT-2", "UTC-3"} { // the last is three hours ahead, and calls itself UTC
		p.exec(t, `SELECT set_config('TimeZone', $1, false)`, zone)
		p.exec(t, `SELECT FROM pglock.once($1, 'l', $2, $3, p_of => '2126-02-28 23:00Z', p_keep => '1 month')`, zone,
			g.token, g.id.String())
	}
	wantCount(t, p, 1, "one time and one length are kept until %d times",
		`SELECT count(DISTINCT keep_until) FROM pglock.done_keys`)
}
