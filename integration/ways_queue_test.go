package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// mustEnqueue queues for a lock that is held.
func (p *peer) mustEnqueue(t *testing.T, name, mode string, capacity any) queued {
	t.Helper()
	q, err := p.enqueue(t.Context(), name, uuid.New(), mode, capacity)
	if err != nil || q.ticket == 0 {
		t.Fatalf("enqueue for %q: %+v, %v", name, q, err)
	}
	return q
}

// grantOf is the token of a grant that stands, 0 when there is none.
func grantOf(t *testing.T, look *peer, name string, id uuid.UUID) int64 {
	t.Helper()
	return one[int64](t, look,
		`SELECT coalesce(max(token), 0) FROM pglock.locks WHERE name = $1 AND grant_id = $2 AND expires_at > clock_timestamp()`, name, id.String())
}

// A ticket that is being written when the holder releases is waited for and served: nobody waits for a lock that is
// free.
func TestI8_ReleaseSeesATicketThatIsBeingWritten(t *testing.T) {
	db := pgtest.Parallel(t)
	patientWaits(t, newPeer(t, db.URL()))
	for way := range releaseWays {
		t.Run(way, func(t *testing.T) {
			holder, waiter, look := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
			g := holder.mustAcquire(t, t.Name(), time.Minute)
			waiter.exec(t, `BEGIN`)
			q := waiter.mustEnqueue(t, t.Name(), "exclusive", nil)
			// A release for many gives up a wait that is longer than a moment, and has done nothing.
			if way == "release_leases" {
				if released, err := holder.releaseBy(t.Context(), way, g); state(err) != "55P03" || released ||
					!isHeld(t, look, g) {
					t.Errorf("I8: %v, %v, and held is %v", released, err, isHeld(t, look, g))
				}
				waiter.exec(t, `COMMIT`)
				holder.mustReleaseBy(t, way, g)
			} else {
				done := must.Go(func() error { _, err := holder.releaseBy(t.Context(), way, g); return err })
				holder.awaitBlocked(t, look)
				waiter.exec(t, `COMMIT`)
				must.Note(t, <-done)
			}
			if token := grantOf(t, look, t.Name(), q.id); token <= g.token {
				t.Errorf("I8: after the release the waiter has token %d, after %d", token, g.token)
			}
		})
	}
}

// The other order: whoever would write a ticket while the holder releases waits for that, and is told to ask again,
// because nobody queues for a lock that is free.
func TestI8_NoTicketForALockThatIsBeingReleased(t *testing.T) {
	db := pgtest.Parallel(t)
	patientWaits(t, newPeer(t, db.URL()))
	for way := range releaseWays {
		holder, waiter, look := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
		g := holder.mustAcquire(t, way, time.Minute)
		waiter.notes(t)
		holder.exec(t, `BEGIN`)
		holder.mustReleaseBy(t, way, g)
		type answer struct {
			queued
			err error
		}
		answered := make(chan answer, 1)
		id := uuid.New()
		go func() {
			q, err := waiter.enqueue(t.Context(), way, id, "exclusive", nil)
			answered <- answer{q, err}
		}()
		waiter.awaitBlocked(t, look)
		holder.exec(t, `COMMIT`)
		if a := <-answered; a.err != nil || a.granted || a.ticket != 0 {
			t.Errorf("I8: %s: %+v; want to ask again for a lock that is free", way, a)
		}
		if a, err := waiter.enqueue(t.Context(), way, id, "exclusive", nil); err != nil || !a.granted ||
			a.token <= g.token {
			t.Errorf("I8: %s, asked again: %+v, %v; want the lock, which is free", way, a, err)
		}
	}
}

// Nobody overtakes the queue in any way when the lease has run out; whoever waits and asks again has its turn.
func TestI9_NoWayOvertakesTheQueue(t *testing.T) {
	db := pgtest.Parallel(t)
	for way := range grantWays {
		p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
		g := p.mustAcquire(t, way, time.Minute)
		q := waiter.mustEnqueue(t, way, "exclusive", nil)
		endNow(t, p, way)
		if other, err := p.grantBy(t.Context(), way, way, uuid.New()); err != nil || other.granted {
			t.Errorf("I9: %s: %+v, %v", way, other, err)
		}
		again, err := waiter.enqueue(t.Context(), way, q.id, "exclusive", nil)
		if err != nil || !again.granted || again.token <= g.token {
			t.Errorf("I9: %s: the waiter asks again: %+v, %v, after %d", way, again, err, g.token)
		}
	}
}

// A release serves the first in the queue whose session is alive, and readers as readers.
func TestI9_ReleaseServesWhoseTurnItIs(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for way := range releaseWays {
		name := way
		g := p.mustAcquire(t, name, time.Minute)
		var waiting []queued
		for n, mode := range []string{"exclusive", "exclusive", "exclusive", "exclusive", "shared", "shared"} {
			q := newHastyPeer(t, db.URL())
			waiting = append(waiting, q.mustEnqueue(t, name, mode, nil))
			switch n {
			case 1: // it has died
				p.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() WHERE session_id = $1`,
					q.session().String())
			case 2: // it has left
				p.exec(t, `SELECT pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`, q.key.String(), name,
					waiting[n].id.String())
			}
		}
		for _, n := range []int{0, 3} {
			p.mustReleaseBy(t, way, g)
			token := grantOf(t, p, name, waiting[n].id)
			if token <= g.token {
				t.Fatalf("I9: %s: waiter %d has token %d, after %d", way, n, token, g.token)
			}
			g = waiting[n].grant
			g.token = token
		}
		p.mustReleaseBy(t, way, g)
		for _, n := range []int{4, 5} {
			if slot := one[int](t, p,
				`SELECT slot FROM pglock.locks WHERE name = $1 AND grant_id = $2 AND mode = 'shared'`, name,
				waiting[n].id.String()); slot != n-3 {
				t.Errorf("reader %d has slot %d", n, slot)
			}
		}
		wantCount(t, p, 0, "%d are still queued", `SELECT count(*) FROM pglock.waiters`)
	}
}

// A ticket has its place behind those before it, above every ticket that was served, and is the same when it is asked
// for again.
func TestI9_TicketsStandInOrder(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Minute)
	// as after a failover that set the sequence back
	p.exec(t, `UPDATE pglock.locks SET served = 5000 WHERE name = 'x'`)
	p.exec(t, `SELECT setval('pglock.ticket_seq', 4998)`) // and it is about to catch up
	var tickets []queued
	for n := range 3 {
		q := newHastyPeer(t, db.URL())
		b := q.mustEnqueue(t, "x", "exclusive", nil)
		if b.ticket <= 5000 || n > 0 && b.ticket <= tickets[n-1].ticket {
			t.Errorf("I9: ticket %d of %v", b.ticket, tickets)
		}
		again, err := q.enqueue(t.Context(), "x", b.id, "exclusive", nil)
		if err != nil || again.place != int64(n+1) || again.first != (n == 0) || again.ticket != b.ticket {
			t.Errorf("ticket %d again: %+v, %v", b.ticket, again, err)
		}
		tickets = append(tickets, b)
	}
	// A session that would be dead soon says that it is alive with its next ticket.
	q := newHastyPeer(t, db.URL())
	tickets = append(tickets, q.mustEnqueue(t, "x", "exclusive", nil))
	p.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() + interval '2 s' WHERE session_id = $1`,
		q.session().String())
	tickets = append(tickets, q.mustEnqueue(t, "x", "exclusive", nil))
	if !one[bool](t, p,
		`SELECT alive_until > clock_timestamp() + interval '5 s' FROM pglock.sessions WHERE session_id = $1`,
		q.session().String()) {
		t.Error("the session counts as dead soon, in spite of its ticket")
	}
	for _, b := range tickets {
		p.mustReleaseBy(t, "release_lease", g)
		token := grantOf(t, p, "x", b.id)
		if token <= g.token {
			t.Fatalf("I9: ticket %d was not served in its turn", b.ticket)
		}
		g = b.grant
		g.token = token
	}
	// A grant ID has one place, in one queue.
	p.mustAcquire(t, "y", time.Minute)
	b := q.mustEnqueue(t, "y", "exclusive", nil)
	if other, err := q.enqueue(t.Context(), "x", b.id, "exclusive", nil); state(err) != "22023" || other.granted {
		t.Errorf("the same grant ID for another lock: %+v, %v", other, err)
	}
	p.exec(t, `SELECT pglock.give_up(gen_random_uuid(), '{y}', ARRAY[$1::uuid], true)`, b.id.String())
	if again, err := q.enqueue(t.Context(), "y", b.id, "exclusive", nil); state(err) != "LK008" {
		t.Errorf("a ticket that was given up: %+v, %v; want LK008", again, err)
	}
	wantCount(t, p, 0, "%d tickets are left", `SELECT count(*) FROM pglock.waiters WHERE grant_id = $1`, b.id.String())
}

// A request to wait that comes to write its ticket after it was given up leaves no ticket: whichever of the two is
// first to lock the head.
func TestTrap9_LateTicketOfARequestThatWasGivenUpIsTakenBack(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	patientWaits(t, look)
	p.mustAcquire(t, "x", time.Minute)
	p.exec(t,
		`CREATE FUNCTION public.held_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER held_up BEFORE INSERT ON pglock.waiters FOR EACH ROW EXECUTE FUNCTION public.held_up()`)
	look.exec(t, `SELECT pg_advisory_lock(1)`)
	id := uuid.New()
	asked := must.Go(func() error { _, err := waiter.enqueue(t.Context(), "x", id, "exclusive", nil); return err })
	waiter.awaitBlocked(t, look)
	given := must.Go(func() error {
		_, err := p.Exec(t.Context(), `SELECT pglock.give_up(gen_random_uuid(), '{x}', ARRAY[$1::uuid], true)`,
			id.String())
		return err
	})
	p.awaitBlocked(t, look)
	look.exec(t, `SELECT pg_advisory_unlock(1)`)
	must.Note(t, <-asked)
	must.Note(t, <-given)
	wantCount(t, look, 0, "%d tickets are left of a request that was given up",
		`SELECT count(*) FROM pglock.waiters WHERE grant_id = $1`, id.String())
	if _, err := waiter.enqueue(t.Context(), "x", id, "exclusive", nil); state(err) != "LK008" {
		t.Errorf("it was answered %v, want LK008", err)
	}
}

// An owner that holds the lock itself gets that error, and no ticket behind itself.
func TestI9_NoTicketForWhoeverHoldsTheLock(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	owner := uuid.New()
	freed(t, p, "known")
	for _, name := range []string{"new", "known"} {
		p.exec(t, `SELECT pglock.acquire_lease($3, gen_random_uuid(), $1, 'peer', '1 min', p_owner_id => $2)`,
			p.key.String(), owner.String(), name)
		for _, wait := range []bool{true, false} {
			_, err := p.Exec(t.Context(),
				`SELECT pglock.acquire_lease($4, gen_random_uuid(), $1, 'peer', '1 min', p_wait => $3, p_owner_id => $2, p_nested => true)`,
				p.key.String(), owner.String(), wait, name)
			if state(err) != "LK004" {
				t.Errorf("a lock that is %s: %v, want LK004", name, err)
			}
		}
	}
	wantCount(t, p, 0, "%d tickets", `SELECT count(*) FROM pglock.waiters`)
}

// A grant waits for the disk whatever the session's default, a hand-over too, and so does what an operator decides and
// the answer about a write; a release leaves the setting to its caller.
func TestI12_I24_AllWaysSetTheCommitAsTheyNeed(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	patientWaits(t, p)
	setting := func() string { return one[string](t, p, `SHOW synchronous_commit`) }
	p.mustAcquire(t, "held", time.Hour)
	for _, before := range []string{"off", "local", "on", "remote_apply"} {
		durable := map[string]string{"off": "on", "local": "on"}[before]
		if durable == "" {
			durable = before
		}
		for way := range grantWays {
			for _, name := range []string{before + " known " + way, before + " new " + way} {
				if strings.Contains(name, "known") {
					freed(t, p, name)
				}
				p.exec(t, `BEGIN; SET LOCAL synchronous_commit = `+before)
				p.mustGrantBy(t, way, name)
				if got := setting(); got != durable {
					t.Errorf("I12: %s: synchronous_commit is %s in the transaction of the grant", name, got)
				}
				p.exec(t, `ROLLBACK`)
			}
			g := p.mustGrantBy(t, way, before+" again "+way)
			p.exec(t, `BEGIN; SET LOCAL synchronous_commit = `+before)
			if again, err := p.grantBy(t.Context(), way, g.name, g.id); err != nil || again.token != g.token ||
				setting() != durable {
				t.Errorf("I12: %s: %+v again: %+v, %v; synchronous_commit is %s", way, g, again, err, setting())
			}
			p.exec(t, `ROLLBACK`)
		}
		for way := range releaseWays {
			g := p.mustAcquire(t, before+" release "+way, time.Minute)
			p.exec(t, `BEGIN; SET LOCAL synchronous_commit = `+before)
			p.mustReleaseBy(t, way, g)
			if got := setting(); got != before {
				t.Errorf("I24: %s leaves synchronous_commit at %s, it was %s", way, got, before)
			}
			p.exec(t, `COMMIT`)

			g = p.mustAcquire(t, before+" handed over "+way, time.Minute)
			q := waiter.mustEnqueue(t, g.name, "exclusive", nil)
			p.exec(t, `BEGIN; SET LOCAL synchronous_commit = `+before)
			p.mustReleaseBy(t, way, g)
			if got := setting(); got != durable || grantOf(t, p, g.name, q.id) == 0 {
				t.Errorf("I12: a hand-over leaves synchronous_commit at %s, it was %s", got, before)
			}
			p.exec(t, `COMMIT`)
		}
		for _, call := range []string{
			`acquire_lease('shared', gen_random_uuid(), gen_random_uuid(), 'peer', '1 min', p_mode => 'shared')`,
			`acquire_lease('limit', gen_random_uuid(), gen_random_uuid(), 'peer', '1 min', p_mode => 'limit',
				p_capacity => 2)`,
			`break_lock('held', 'test', 'test')`, `break_session(gen_random_uuid(), 'test', 'test')`,
			`advance_epoch('test', 'test')`, `outcome(gen_random_uuid(), gen_random_uuid(), pglock.database_id())`,
		} {
			p.exec(t, `BEGIN; SET LOCAL synchronous_commit = `+before)
			p.exec(t, `SELECT pglock.`+call)
			if got := setting(); got != durable {
				t.Errorf("I12: %s leaves synchronous_commit at %s, it was %s", call, got, before)
			}
			p.exec(t, `ROLLBACK`)
		}
	}
}

// A call that says that it is a whole transaction does not wait for the disk, unless it has granted something to
// anybody.
func TestI12_I24_CallsAloneWaitForTheDiskWhereTheyGrant(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	patientWaits(t, p)
	many := `pglock.acquire_leases(ARRAY[$1], ARRAY[$2::uuid], $3, '{p}', '{1 min}', '{NULL}', '{false}', '{exclusive}', '{NULL}', '{true}', '10 s', '{NULL}', '{false}', true)`
	for what, call := range map[string]string{
		"acquire_lease":  `SELECT more -> 'handed' FROM pglock.acquire_lease($1, $2, $3, 'p', '1 min', p_wait => true, p_alone => true)`,
		"acquire_leases": `SELECT more -> 'handed' FROM ` + many,
		"give_up":        `SELECT more -> 'handed' FROM pglock.give_up($3, ARRAY[$1], ARRAY[$2::uuid], p_alone => true)`,
		"release_lease":  `SELECT more -> 'handed' FROM pglock.locks l, pglock.release_lease($1, l.token, l.grant_id, p_alone => true) r WHERE l.name = $1 AND $2::uuid <> $3::uuid`,
		"release_leases": `SELECT r.more -> 'handed' FROM pglock.locks l, pglock.release_leases(ARRAY[$1], ARRAY[l.token], ARRAY[l.grant_id], '{0}', true) r WHERE l.name = $1 AND $2::uuid <> $3::uuid`,
	} {
		for _, hands := range []bool{false, true} {
			name := fmt.Sprint(what, hands)
			p.mustAcquire(t, name, time.Minute)
			if hands {
				waiter.mustEnqueue(t, name, "exclusive", nil)
				if !strings.HasPrefix(what, "release") {
					endNow(t, p, name)
				}
			}
			p.exec(t, `BEGIN; SET LOCAL synchronous_commit = on`)
			handed := one[*string](t, p, call, name, uuid.NewString(), p.key.String())
			if got := one[string](t, p, `SHOW synchronous_commit`); (handed != nil) != hands ||
				got != map[bool]string{true: "on", false: "off"}[hands] {
				t.Errorf("I12, I24: %s: synchronous_commit is %s where it has handed on: %v", what, got, hands)
			}
			p.exec(t, `COMMIT`)
		}
	}
}

// A refused try writes nothing in any way: no WAL, no row lock, no sequence value, no transaction ID.
func TestI13_Trap6_RefusedTryInAnyWayWritesNothing(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := migrated(t, map[string]string{"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0"})
	p := newPeer(t, server.URL())
	p.mustAcquire(t, "x", time.Hour)
	p.exec(t, "CHECKPOINT")
	look := func() string {
		return one[string](t, p,
			`SELECT concat_ws(' ', pg_current_wal_insert_lsn(), l.xmax, l.xmin, l.ctid, s.last_value, s.is_called,
			pg_snapshot_xmax(pg_current_snapshot())) FROM pglock.locks l, pglock.fencing_token_seq s`)
	}
	for way := range grantWays {
		refuse := func(times int) {
			for range times {
				if g, err := p.grantBy(t.Context(), way, "x", uuid.New()); err != nil || g.granted {
					t.Fatal(g, err)
				}
			}
		}
		refuse(10) // the first to read a page of the catalog after the migration may tidy it up
		before := look()
		refuse(100)
		if after := look(); after != before {
			t.Errorf("I13: %s: WAL position, row and sequence were %s, and are %s after 100 refusals", way, before,
				after)
		}
	}
}

// A refused try looks up its lock twice at most: whether it is free, and who holds it.
func TestI13_RefusedTryIsTwoLookUpsAtMost(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	p.mustAcquire(t, "x", time.Hour)
	for way := range grantWays {
		p.exec(t, `BEGIN`)
		looked := func() int {
			return one[int](t, p,
				`SELECT idx_scan + 1000 * seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'pglock.locks'::regclass`)
		}
		before := looked()
		if g, err := p.grantBy(t.Context(), way, "x", uuid.New()); err != nil || g.granted {
			t.Fatal(g, err)
		}
		if n := looked() - before; n < 1 || n > 2 {
			t.Errorf("I13: %s looked %d times into the index, want once or twice", way, n)
		}
		p.exec(t, `COMMIT`)
	}
}

// Renewals for many wait for no row lock: what is locked is busy, and the others are renewed.
func TestI13_RenewalsForManyWaitForNoRow(t *testing.T) {
	db := pgtest.Parallel(t)
	p, other := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	p.exec(t, `SET lock_timeout = '1ms'`)
	a, b := p.mustAcquire(t, "a", time.Minute), p.mustAcquire(t, "b", time.Minute)
	other.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'b' FOR UPDATE`)
	if got := one[string](t, p,
		`SELECT string_agg(n || ' ' || outcome, ', ' ORDER BY n) FROM pglock.renew_leases('{a,b}', $1, $2, '{0,0}')`,
		[]int64{a.token, b.token}, []uuid.UUID{a.id, b.id}); got != "1 renewed, 2 busy" {
		t.Errorf("renew_leases beside a lock: %s", got)
	}
	other.exec(t, `COMMIT`)
}

// A call for many that meets somebody who does not end gives up soon, and has done nothing: the members are asked for
// alone.
func TestI13_CallsForManyDoNotWaitForLong(t *testing.T) {
	db := pgtest.Parallel(t)
	other, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, p)
	leases := map[string]uuid.UUID{"a": uuid.New(), "b": uuid.New()}
	for name, id := range leases {
		must.Get(p.grantBy(t.Context(), "acquire_lease", name, id))(t)
	}
	acquire := `SELECT pglock.acquire_leases('{%s}', ARRAY[gen_random_uuid(), gen_random_uuid()], '` + p.key.String() +
		`', '{p,p}', '{1 min,1 min}', '{NULL,NULL}',
		'{false,false}', '{exclusive,exclusive}', '{NULL,NULL}', '{true,true}', '10 s', '{NULL,NULL}', '{false,false}')`
	lockB := `SELECT FROM pglock.locks WHERE name = 'b' FOR UPDATE`
	for what, c := range map[string]struct{ held, call string }{
		"acquire_leases": {`SELECT pglock.acquire_lease('new', gen_random_uuid(), gen_random_uuid(), 'other', '1 min')`,
			fmt.Sprintf(acquire, "c,new")},
		"release_leases": {lockB,
			`SELECT pglock.release_leases(array_agg(name ORDER BY name), array_agg(token ORDER BY name), array_agg(grant_id ORDER BY name), '{0,0}') FROM pglock.locks WHERE name IN ('a', 'b')`},
		"give_up": {lockB, `SELECT pglock.give_up('` + p.key.String() +
			`', '{a,b}', ARRAY[gen_random_uuid(), gen_random_uuid()], true)`},
	} {
		p.exec(t, `BEGIN`) // the first call of a session takes its time
		p.exec(t, c.call)
		p.exec(t, `ROLLBACK`)
		other.exec(t, `BEGIN`)
		other.exec(t, c.held)
		took := time.Hour
		for range 5 { // a busy machine delays some of them
			began := time.Now()
			if _, err := p.Exec(t.Context(), c.call); state(err) != "55P03" {
				t.Errorf("%s: %v; want 55P03", what, err)
			}
			took = min(took, time.Since(began))
		}
		if took > time.Second {
			t.Errorf("%s waits for %v, want a moment", what, took)
		}
		other.exec(t, `ROLLBACK`)
	}
	if n := one[int](t, p,
		`SELECT (SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp()) + (SELECT count(*) FROM pglock.waiters)`); n != len(leases) {
		t.Errorf("%d leases and tickets, want %d", n, len(leases))
	}
}

// A call for one lock waits for its row longer than one for many, and for a second at most.
func TestI13_CallsForOneWaitForASecondAtMost(t *testing.T) {
	db := pgtest.Parallel(t)
	other, p, waits := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Hour)
	waits.queue(t, "x", uuid.New())
	other.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'x' FOR UPDATE`)
	for what, call := range map[string]string{
		"release_lease": `SELECT pglock.release_lease('x', $1, $2)`,
		"hand_over":     `SELECT pglock.hand_over('x', $1, $2, 'peer')`,
		"give_up": `SELECT pglock.give_up('` + p.key.String() + `', '{x}', ARRAY[$2::text::uuid])
			WHERE $1::bigint > 0`,
	} {
		if !pgtest.Among(what, "release_lease") {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := p.Exec(ctx, call, g.token, g.id.String()); state(err) != "55P03" {
			t.Errorf("I13: %s: %v, want 55P03", what, err)
		}
	}
	other.exec(t, `ROLLBACK`)
	if released, err := p.release(t.Context(), g); err != nil || !released {
		t.Errorf("I13: afterwards it is released: %v, %v", released, err)
	}
}

// Tokens of every way carry the epoch, which is above every token that was handed out before it.
func TestI22_GrantsInAnyWayCarryTheEpoch(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	for round := range 2 {
		held := p.mustAcquire(t, fmt.Sprint("held over ", round), time.Minute) // of the epoch before
		heir := waiter.mustEnqueue(t, held.name, "exclusive", nil)
		floor := one[int64](t, p, `SELECT pglock.advance_epoch('test', 'test')`)
		p.mustReleaseBy(t, "release_lease", held)
		if token := grantOf(t, p, held.name, heir.id); token <= floor {
			t.Errorf("I22: handed over with token %d, want above %d", token, floor)
		}
		for way := range grantWays {
			for _, name := range []string{way, way + uuid.NewString()} { // known from the second time on, and new
				g := p.mustGrantBy(t, way, name)
				q := waiter.mustEnqueue(t, name, "exclusive", nil)
				p.mustReleaseBy(t, "release_leases", g)
				next := grantOf(t, p, name, q.id)
				if g.token <= floor || next <= g.token {
					t.Errorf("I22: %s: tokens %d and %d, want above %d", name, g.token, next, floor)
				}
				p.mustReleaseBy(t, "release_lease", grant{name: name, id: q.id, token: next})
			}
		}
	}
}

// The first grant on a timeline that is not on record begins a new epoch, in whatever way it is made.
func TestI22_Trap12_FirstGrantOnANewTimelineBeginsAnEpoch(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	promoted := func() int64 { // as after a promotion, which is another process on another timeline
		return one[int64](t, p,
			`UPDATE pglock.installation SET timeline = timeline - 1, started = started - interval '1 s' RETURNING epoch`)
	}
	want := func(what string, token, after, epoch int64) {
		t.Helper()
		if token>>44 != epoch>>8+1 || token <= after {
			t.Errorf("I22: %s: token %d of line %d, want line %d", what, token, token>>44, epoch>>8+1)
		}
		if got := one[int64](t, p, `SELECT epoch FROM pglock.installation`); got != (epoch>>8+1)<<8 {
			t.Errorf("I22: %s: the record has epoch %d after %d", what, got, epoch)
		}
	}
	for way := range grantWays {
		before := freed(t, p, way)
		epoch := promoted()
		want(way, p.mustGrantBy(t, way, way).token, before.token, epoch)
		epoch = promoted()
		want(way+" of a new name", p.mustGrantBy(t, way, way+", new").token, 0, epoch)
	}
	for way := range releaseWays {
		held := p.mustAcquire(t, way, time.Minute)
		q := waiter.mustEnqueue(t, way, "exclusive", nil)
		epoch := promoted()
		p.mustReleaseBy(t, way, held)
		want(way, grantOf(t, p, way, q.id), held.token, epoch)
	}
}

// Tokens of a lock ascend though the sequence was set back, as by a failover that nobody has noticed.
func TestI2_TokensAscendThoughTheSequenceWasSetBack(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	for way := range grantWays {
		p.exec(t, `SELECT setval('pglock.fencing_token_seq', 1000)`)
		last := freed(t, p, way)
		for n := range 3 {
			back := int64(1)
			if n > 0 { // the next token would be the last one again
				back = last.token&(1<<36-1) - 1
			}
			p.exec(t, `SELECT setval('pglock.fencing_token_seq', $1)`, back)
			g := p.mustGrantBy(t, way, way)
			q := waiter.mustEnqueue(t, way, "exclusive", nil)
			p.mustReleaseBy(t, "release_lease", g)
			next := grant{name: way, id: q.id, token: grantOf(t, p, way, q.id)}
			if g.token <= last.token || next.token <= g.token {
				t.Errorf("I2: %s: tokens %d and %d after %d", way, g.token, next.token, last.token)
			}
			p.mustReleaseBy(t, "release_lease", next)
			last = next
		}
	}
	for mode, capacity := range map[string]any{"shared": nil, "limit": 1} {
		last := int64(0)
		for _, back := range []int64{1000, 1} {
			p.exec(t, `SELECT setval('pglock.fencing_token_seq', $1)`, back)
			g, err := p.enqueue(t.Context(), mode, uuid.New(), mode, capacity)
			if err != nil || g.token <= last {
				t.Errorf("I2: mode %s: token %d after %d, %v", mode, g.token, last, err)
			}
			p.mustReleaseBy(t, "release_lease", g.grant)
			last = g.token
		}
	}
}

// Calls for many that name the same locks in opposite orders do not wait for each other in a circle, and neither does a
// call that gives many up. They end a wait that is longer than a moment; here they may wait, so that a circle would be
// one.
func TestI25_CallsForManyInOppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	inOrders(t, oppositeOrders)
}

// inOrders calls f for a database that compares texts as people do, which finds more, and in the tiers that run every
// test, or where there is none such, for one that goes by bytes.
func inOrders(t *testing.T, f func(t *testing.T, url string)) {
	t.Helper()
	none := false
	t.Run("names in the order of a language", func(t *testing.T) {
		defer func() { none = t.Skipped() }()
		f(t, inALanguage(t))
	})
	if none || pgtest.EveryTest {
		t.Run("names in the order of bytes", func(t *testing.T) { f(t, pgtest.Database(t).URL()) })
	}
}

// inALanguage makes a database that compares texts as people do, with a schema in it.
func inALanguage(t *testing.T) string {
	t.Helper()
	look := newPeer(t, pgtest.EmptyDatabase(t).URL())
	name := look.Config().Database + "_language"
	how := `LOCALE_PROVIDER icu ICU_LOCALE 'en'`
	if one[int](t, look, `SELECT current_setting('server_version_num')::int`) < 150000 {
		locale := one[*string](t, look,
			`SELECT max(collcollate) FROM pg_collation WHERE collprovider = 'c' AND collcollate ~* '^en.*utf-?8'`)
		if locale == nil {
			t.Skip("this server has no locale of a language: PostgreSQL 14 knows none of ICU's for a database")
		}
		how = `LOCALE '` + *locale + `'`
	}
	look.exec(t, `CREATE DATABASE `+name+` TEMPLATE template0 ENCODING 'UTF8' `+how)
	t.Cleanup(func() { _, _ = look.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`) })
	u := strings.Replace(look.Config().ConnString(), look.Config().Database, name, 1)
	must.Do(t, migrations.Up(t.Context(), u))
	if !one[bool](t, newPeer(t, u), `SELECT 'a' < 'B'`) {
		t.Fatal("this database goes by bytes")
	}
	return u
}

func oppositeOrders(t *testing.T, url string) {
	t.Helper()
	look := newPeer(t, url)
	patientCalls(t, look)
	patientWaits(t, look)
	acquire := func(wait bool) string {
		return fmt.Sprintf(`SELECT pglock.acquire_leases(names, ARRAY(SELECT gen_random_uuid() FROM unnest(names)), gen_random_uuid(), array_fill('h'::text, n), array_fill('1 min'::interval, n),
		array_fill(NULL::jsonb, n), array_fill(false, n), array_fill('exclusive'::text, n), array_fill(NULL::int, n), array_fill(%v, n), '10 s', array_fill(NULL::uuid, n), array_fill(false, n)) FROM (SELECT $1::text[] AS names, ARRAY[cardinality($1::text[])] AS n) x`, wait)
	}
	giveUp := `SELECT pglock.give_up(gen_random_uuid(), $1::text[], ARRAY(SELECT gen_random_uuid() FROM unnest($1::text[])), true)`
	release := `SELECT pglock.release_leases($1::text[], ARRAY(SELECT token FROM pglock.locks l JOIN unnest($1::text[]) WITH ORDINALITY n (name, i) USING (name) ORDER BY i),
		ARRAY(SELECT grant_id FROM pglock.locks l JOIN unnest($1::text[]) WITH ORDINALITY n (name, i) USING (name) ORDER BY i), array_fill(0, ARRAY[cardinality($1::text[])]))`
	for what, tc := range map[string]struct {
		held          bool
		first, second string
	}{
		"new names":            {false, acquire(false), acquire(false)},
		"tickets":              {true, acquire(true), acquire(true)},
		"releases":             {true, release, release},
		"ticket and release":   {true, acquire(true), release},
		"giving up":            {true, giveUp, acquire(true)},
		"ticket and giving up": {true, acquire(true), giveUp},
		"giving up new":        {false, giveUp, acquire(false)},
	} {
		t.Run(what, func(t *testing.T) {
			gate, a, b := newPeer(t, url), newPeer(t, url), newPeer(t, url)
			name := func(s string) string { return what + " " + s }
			if tc.held {
				for _, s := range []string{"a", "B", "z"} {
					look.mustAcquire(t, name(s), time.Minute)
				}
			}
			// B comes first by bytes, and between the others by many a collation. Whoever comes first is held up there.
			gate.exec(t, `BEGIN`)
			if tc.held {
				gate.exec(t, `SELECT FROM pglock.locks WHERE name = $1 FOR UPDATE`, name("B"))
			} else {
				gate.exec(t, acquire(true), []string{name("B")})
			}
			done := make(chan error, 2)
			go func() {
				_, err := a.Exec(t.Context(), tc.first, []string{name("z"), name("B"), name("a")})
				done <- err
			}()
			a.awaitBlocked(t, look)
			go func() {
				_, err := b.Exec(t.Context(), tc.second, []string{name("a"), name("z"), name("B")})
				done <- err
			}()
			b.awaitBlocked(t, look)
			gate.exec(t, `ROLLBACK`)
			for range 2 {
				if err := <-done; err != nil {
					t.Errorf("I25: %v", err)
				}
			}
		})
	}
}

// A grant touches no fence, which a transaction may hold that writes with the token of another lock.
func TestI25_NoGrantOrReleaseTouchesAFence(t *testing.T) {
	db := pgtest.Parallel(t)
	p, writer := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	was, g := writer.mustAcquire(t, "of the writer before", time.Minute), writer.mustAcquire(t, "of the writer",
		time.Minute)
	for way := range grantWays {
		freed(t, p, way)
		if err := writer.fence(t.Context(), was, way); err != nil { // there is a fence that others see
			t.Fatal(err)
		}
		writer.exec(t, `BEGIN`)
		must.Do(t, writer.fence(t.Context(), g, way))
		p.exec(t, `SET lock_timeout = '1ms'`)
		p.mustReleaseBy(t, "release_lease", p.mustGrantBy(t, way, way))
		p.mustReleaseBy(t, "release_leases", p.mustGrantBy(t, way, way))
		p.exec(t, `SET lock_timeout = '3s'`)
		writer.exec(t, `COMMIT`)
		if at := one[int64](t, p, `SELECT last_token FROM pglock.fences WHERE resource = $1`, way); at != g.token {
			t.Errorf("I25: %s has moved the fence to %d, it stood at %d", way, at, g.token)
		}
	}
}

// A standby grants nothing, ends nothing, and does not say of any lease that it runs.
func TestI23_StandbyAnswersNoCallForMany(t *testing.T) {
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	look := newPeer(t, primary.url)
	g := look.mustGrantBy(t, "acquire_leases", "x")
	standby.catchUp(t, look)
	there := newPeer(t, standby.url)
	for _, sql := range []string{
		`SELECT pglock.check_leases('{x}', ARRAY[$1::bigint], ARRAY[$2::uuid], '{0}')`,
		`SELECT pglock.renew_leases('{x}', ARRAY[$1::bigint], ARRAY[$2::uuid], '{0}')`,
		`SELECT pglock.renew_leases('{x}', ARRAY[$1::bigint], ARRAY[$2::uuid], '{0}', '1 s')`,
	} {
		if _, err := there.Exec(t.Context(), sql, g.token, g.id.String()); state(err) != "25006" {
			t.Errorf("I23: %s on a standby: %v, want 25006", sql, err)
		}
	}
	for way := range grantWays {
		if g, err := there.grantBy(t.Context(), way, "y", uuid.New()); state(err) != "25006" || g.granted {
			t.Errorf("I23: %s on a standby: %+v, %v", way, g, err)
		}
	}
	for way := range releaseWays {
		if released, err := there.releaseBy(t.Context(), way, g); state(err) != "25006" || released {
			t.Errorf("I23: %s on a standby: %v, %v", way, released, err)
		}
	}
}

// The same grant ID in the hands of a caller that has it from an answer that was lost is granted once, by whichever way
// it asks again, for the whole TTL from then on; and not at all when its lease has run out meanwhile.
func TestI6_AGrantOfAnyWayIsAnsweredAgain(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	askAgain := func(how string, g grant) (grant, error) {
		if how == "as a retry" {
			return p.acquire(t.Context(), g.name, g.id, time.Minute, true)
		}
		return p.grantBy(t.Context(), how, g.name, g.id)
	}
	for way := range grantWays {
		for _, name := range []string{way + ", known", way + ", new"} {
			if strings.HasSuffix(name, "known") {
				freed(t, p, name)
			}
			g := p.mustGrantBy(t, way, name)
			hows := append(slices.Sorted(maps.Keys(grantWays)), "as a retry", "as a retry")
			for _, how := range hows {
				// so much was left
				p.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '20 s' WHERE name = $1`,
					name)
				again, err := askAgain(how, g)
				left, leftErr := p.left(t.Context(), g)
				if err != nil || leftErr != nil || !again.granted || again.token != g.token || left < 30*time.Second {
					t.Errorf("I6: %s: %+v again, %s: %+v, %v; it lasts for %v, %v", name, g, how, again, err, left,
						leftErr)
				}
			}
			endNow(t, p, name)
			for _, how := range hows {
				if again, err := askAgain(how, g); state(err) != "LK008" || again.granted {
					t.Errorf("I6: %s: %s, when the lease has run out: %+v, %v; want LK008", name, how, again, err)
				}
			}
			if isHeld(t, p, g) {
				t.Errorf("I6: %s: a lease that had run out is held again", name)
			}
		}
	}
}

// noteCommits makes the database note, inside COMMIT, with which synchronous_commit each transaction commits that has
// granted a lock, ended a lease, or written a ticket.
func noteCommits(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `
		CREATE TABLE public.commits (xact xid8, what text, setting text);
		CREATE FUNCTION public.note_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		DECLARE what text := 'ticket';
		BEGIN
			IF TG_TABLE_NAME = 'locks' THEN
				what := CASE WHEN NEW.expires_at = '-infinity' AND TG_OP = 'UPDATE' THEN 'release'
					WHEN NEW.expires_at > '-infinity' AND (OLD IS NULL OR OLD.token <> NEW.token) THEN 'grant'
					WHEN NEW.expires_at > OLD.expires_at THEN 'again' END; -- a grant that is answered again, or a renewal: as durable
			END IF;
			IF what IS NOT NULL THEN
				INSERT INTO public.commits VALUES (pg_current_xact_id(), what, current_setting('synchronous_commit'));
			END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT OR UPDATE ON pglock.locks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note_commit();
		CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT ON pglock.waiters DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note_commit()`)
}

// Every transaction of the library that grants a lock commits durably, whatever else travels in it; those that do
// nothing but release, or queue, do not wait for the disk.
func TestI12_I24_WhatTravelsTogetherCommitsAsItsMembersNeed(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"on", "off"} {
		t.Run("by default "+setting, func(t *testing.T) {
			db := pgtest.Parallel(t)
			look := newPeer(t, db.URL())
			noteCommits(t, look)
			wg := pgtest.Group(t)
			for m := range 2 {
				c := newClient(t, db.Pool(t, maxConnections(4), withDefault("synchronous_commit", setting)))
				for n := range 8 * rounds(3) {
					wg.Go(func() {
						for round := range rounds(12) {
							name, opts := fmt.Sprint("own ", n, " of ",
								m), []pglock.AcquireOption{pglock.WithMaxWait(patience)}
							if n%3 > 0 {
								name = fmt.Sprint("shared ", (n+round)%4)
							}
							if n%2 == 0 {
								opts = append(opts, pglock.WithMetadata([]byte(`{"of": "a test"}`)))
							}
							if err := c.Do(t.Context(), name, func(context.Context, *pglock.Lease) error {
								return nil
							}, opts...); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			wg.Wait()
			const kinds = `SELECT count(*) FROM (SELECT xact, bool_or(what IN ('grant', 'again')) AS granted, bool_or(what = 'ticket') AS queued, max(setting) AS setting,
				count(*) FILTER (WHERE what = 'grant') AS grants FROM public.commits GROUP BY xact) c WHERE `
			if n := one[int](t, look, kinds+`granted AND setting <> 'on'`); n != 0 {
				t.Errorf("I12: %d transactions have granted locks and do not wait for the disk", n)
			}
			if n := one[int](t, look, kinds+`NOT granted AND setting <> 'off'`); n != 0 {
				t.Errorf("I24: %d transactions have granted nothing and wait for the disk", n)
			}
			for what, where := range map[string]string{"a grant": `granted`,
				"a release or a ticket alone": `NOT granted`} {
				if n := one[int](t, look, kinds+where); n == 0 {
					t.Errorf("no transaction has had %s: this shows nothing", what)
				}
			}
		})
	}
}
