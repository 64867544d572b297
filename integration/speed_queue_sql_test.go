package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/pgtest"
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
	return one[int64](t, look, `SELECT coalesce(max(token), 0) FROM pglock.locks WHERE name = $1 AND grant_id = $2 AND expires_at > clock_timestamp()`, name, id.String())
}

// A ticket that is being written when the holder releases in a short way is seen: nobody waits for a lock that is free.
func TestI8_ShortReleaseSeesATicketThatIsBeingWritten(t *testing.T) {
	db := pgtest.Database(t)
	for way := range shortReleases {
		t.Run(way, func(t *testing.T) {
			holder, waiter, look := newShortPeer(t, db.URL()), newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
			g := holder.mustAcquire(t, t.Name(), time.Minute)
			waiter.exec(t, `BEGIN`)
			q := waiter.mustEnqueue(t, t.Name(), "exclusive", nil)
			if way == "release_many" { // it waits for nobody, and leaves this one to release_lease
				if released, err := holder.shortRelease(t.Context(), way, g); err != nil || released || !isHeld(t, look, g) {
					t.Errorf("I8: %v, %v, and held is %v", released, err, isHeld(t, look, g))
				}
				waiter.exec(t, `COMMIT`)
				if released, err := holder.shortRelease(t.Context(), way, g); err != nil || released || !isHeld(t, look, g) {
					t.Errorf("I8: with a waiter: %v, %v, and held is %v", released, err, isHeld(t, look, g))
				}
				holder.mustShortRelease(t, "release_lease", g)
			} else {
				done := make(chan error, 1)
				go func() {
					_, err := holder.shortRelease(t.Context(), way, g)
					done <- err
				}()
				holder.awaitBlocked(t, look)
				waiter.exec(t, `COMMIT`)
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			if token := grantOf(t, look, t.Name(), q.id); token <= g.token {
				t.Errorf("I8: after the release the waiter has token %d, after %d", token, g.token)
			}
		})
	}
}

// Nobody overtakes the queue in a short way, on a lock that is free and on one whose row is gone.
func TestI9_ShortWaysDoNotOvertakeTheQueue(t *testing.T) {
	db := pgtest.Database(t)
	for way := range shortGrants {
		for what, sql := range map[string]string{
			"free":   `UPDATE pglock.locks SET expires_at = '-infinity' WHERE name = $1`,
			"pruned": `DELETE FROM pglock.locks WHERE name = $1`,
		} {
			t.Run(way+"/"+what, func(t *testing.T) {
				p, waiter := newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
				g := p.mustAcquire(t, t.Name(), time.Minute)
				q := waiter.mustEnqueue(t, t.Name(), "exclusive", nil)
				p.exec(t, sql, t.Name())
				if other, err := p.shortGrant(t.Context(), way, t.Name(), uuid.New()); err != nil || other.granted {
					t.Errorf("I9: %+v, %v", other, err)
				}
				// Who asks with care serves the queue before itself.
				token, want := grantOf(t, p, t.Name(), q.id), way != "acquire_many"
				if (token > 0) != want || want && what == "free" && token <= g.token {
					t.Errorf("I9: the waiter has token %d, after %d", token, g.token)
				}
			})
		}
	}
}

// A release in a short way serves the first in the queue whose session is alive, and readers as readers.
func TestI9_ShortReleaseServesWhoseTurnItIs(t *testing.T) {
	db := pgtest.Database(t)
	p := newShortPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Minute)
	var waiting []queued
	for n, mode := range []string{"exclusive", "exclusive", "exclusive", "exclusive", "shared", "shared"} {
		q := newShortPeer(t, db.URL())
		waiting = append(waiting, q.mustEnqueue(t, "x", mode, nil))
		switch n {
		case 1: // it has died
			p.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() WHERE session_id = $1`, q.session.String())
		case 2: // it has left
			p.exec(t, `SELECT pglock.leave('x', $1)`, waiting[n].id.String())
		}
	}
	for _, n := range []int{0, 3} {
		p.mustShortRelease(t, "release_lease", g)
		token := grantOf(t, p, "x", waiting[n].id)
		if token <= g.token {
			t.Fatalf("I9: waiter %d has token %d, after %d", n, token, g.token)
		}
		g = waiting[n].grant
		g.token = token
	}
	p.mustShortRelease(t, "release_lease", g)
	for _, n := range []int{4, 5} {
		if slot := one[int](t, p, `SELECT slot FROM pglock.locks WHERE name = 'x' AND grant_id = $1 AND mode = 'shared'`, waiting[n].id.String()); slot != n-3 {
			t.Errorf("reader %d has slot %d", n, slot)
		}
	}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.waiters`); n != 0 {
		t.Errorf("%d are still queued", n)
	}
}

// A grant in a short way waits for the disk whatever the session's default, a hand-over too; a release leaves the setting
// to its caller.
func TestI12_I24_ShortWaysSetTheCommitAsTheOldOnes(t *testing.T) {
	db := pgtest.Database(t)
	p, waiter := newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
	setting := func() string { return one[string](t, p, `SHOW synchronous_commit`) }
	for _, before := range []string{"off", "local", "on", "remote_apply"} {
		durable := map[string]string{"off": "on", "local": "on"}[before]
		if durable == "" {
			durable = before
		}
		for way := range shortGrants {
			for _, name := range []string{before + " known " + way, before + " new " + way} {
				if strings.Contains(name, "known") {
					freed(t, p, name)
				}
				p.exec(t, `BEGIN; SET LOCAL synchronous_commit = `+before)
				p.mustShort(t, way, name)
				if got := setting(); got != durable {
					t.Errorf("I12: %s: synchronous_commit is %s in the transaction of the grant", name, got)
				}
				p.exec(t, `ROLLBACK`)
			}
		}
		for way := range shortReleases {
			g := p.mustAcquire(t, before+" release "+way, time.Minute)
			p.exec(t, `BEGIN; SET LOCAL synchronous_commit = `+before)
			p.mustShortRelease(t, way, g)
			if got := setting(); got != before {
				t.Errorf("I24: %s leaves synchronous_commit at %s, it was %s", way, got, before)
			}
			p.exec(t, `COMMIT`)
		}
		g := p.mustAcquire(t, before+" handed over", time.Minute)
		q := waiter.mustEnqueue(t, g.name, "exclusive", nil)
		p.exec(t, `BEGIN; SET LOCAL synchronous_commit = `+before)
		p.mustShortRelease(t, "release_lease", g)
		if got := setting(); got != durable || grantOf(t, p, g.name, q.id) == 0 {
			t.Errorf("I12: a hand-over leaves synchronous_commit at %s, it was %s", got, before)
		}
		p.exec(t, `COMMIT`)
	}
}

// A refused try writes nothing in the short ways either: no WAL, no row lock, no sequence value, no transaction ID.
func TestI13_RefusedShortTryWritesNothing(t *testing.T) {
	server := migrated(t, map[string]string{"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0"})
	p := newPeer(t, server.URL())
	p.mustAcquire(t, "x", time.Hour)
	p.exec(t, "CHECKPOINT")
	look := func() string {
		return one[string](t, p, `SELECT concat_ws(' ', pg_current_wal_insert_lsn(), l.xmax, l.xmin, l.ctid, s.last_value, s.is_called,
			pg_snapshot_xmax(pg_current_snapshot())) FROM pglock.locks l, pglock.fencing_token_seq s`)
	}
	for way := range shortGrants {
		refuse := func(times int) {
			for range times {
				if g, err := p.shortGrant(t.Context(), way, "x", uuid.New()); err != nil || g.granted {
					t.Fatal(g, err)
				}
			}
		}
		refuse(10) // the first to read a page of the catalog after the migration may tidy it up
		before := look()
		refuse(500)
		if after := look(); after != before {
			t.Errorf("I13: %s: WAL position, row and sequence were %s, and are %s after 500 refusals", way, before, after)
		}
	}
}

// A refused try looks up its lock once.
func TestI13_RefusedShortTryIsOneLookUp(t *testing.T) {
	db := pgtest.Database(t)
	p := newPeer(t, db.URL())
	p.mustAcquire(t, "x", time.Hour)
	for way := range shortGrants {
		p.exec(t, `BEGIN`)
		looked := func() int {
			return one[int](t, p, `SELECT idx_scan + 1000 * seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'pglock.locks'::regclass`)
		}
		before := looked()
		if g, err := p.shortGrant(t.Context(), way, "x", uuid.New()); err != nil || g.granted {
			t.Fatal(g, err)
		}
		if n := looked() - before; n != 1 {
			t.Errorf("I13: %s looked %d times into the index, want once", way, n)
		}
		p.exec(t, `COMMIT`)
	}
}

// Calls for many wait for no row lock: what is locked is left to the call for one, and the others are answered.
func TestI13_CallsForManyWaitForNoRow(t *testing.T) {
	db := pgtest.Database(t)
	p, other := newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
	p.exec(t, `SET lock_timeout = '1ms'`)
	var a, b grant
	for _, name := range []string{"a", "b"} {
		freed(t, p, name)
	}
	other.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'b' FOR KEY SHARE`)
	a.name, a.id, b.name, b.id = "a", uuid.New(), "b", uuid.New()
	got := one[string](t, p, `SELECT string_agg(n || ' ' || granted, ',') FROM pglock.acquire_many('{a,b}', $1, '{NULL,NULL}', gen_random_uuid(), 'h', '1 min')`, []uuid.UUID{a.id, b.id})
	if got != "1 true" {
		t.Errorf("acquire_many beside a lock: %s", got)
	}
	other.exec(t, `COMMIT`)
	b = p.mustAcquire(t, "b", time.Minute)
	a.token = grantOf(t, p, "a", a.id)
	other.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'b' FOR KEY SHARE`)
	tokens, ids := []int64{a.token, b.token}, []uuid.UUID{a.id, b.id}
	if got := one[string](t, p, `SELECT string_agg(n::text, ',') FROM pglock.release_many('{a,b}', $1, $2)`, tokens, ids); got != "1" {
		t.Errorf("release_many beside a lock: %s", got)
	}
	other.exec(t, `COMMIT; BEGIN; SELECT FROM pglock.locks WHERE name = 'b' FOR UPDATE`)
	if got := one[string](t, p, `SELECT string_agg(name || ' ' || outcome, ',' ORDER BY name) FROM pglock.renew_leases('{a,b}', $1, $2, '{0,0}')`, tokens, ids); got != "a released,b busy" {
		t.Errorf("renew_leases beside a lock: %s", got)
	}
	other.exec(t, `COMMIT`)
}

// Tokens of the short ways carry the epoch, which is above every token that was handed out before it.
func TestI22_ShortGrantsCarryTheEpoch(t *testing.T) {
	db := pgtest.Database(t)
	p, waiter := newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
	for round := range 2 {
		held := p.mustAcquire(t, fmt.Sprint("held over ", round), time.Minute) // of the epoch before
		heir := waiter.mustEnqueue(t, held.name, "exclusive", nil)
		floor := one[int64](t, p, `SELECT pglock.advance_epoch('test', 'test')`) << 44
		p.mustShortRelease(t, "release_lease", held)
		if token := grantOf(t, p, held.name, heir.id); token <= floor {
			t.Errorf("I22: handed over with token %d, want above %d", token, floor)
		}
		for way := range shortGrants {
			for _, name := range []string{way, way + uuid.NewString()} { // known from the second time on, and new
				g := p.mustShort(t, way, name)
				q := waiter.mustEnqueue(t, name, "exclusive", nil)
				p.mustShortRelease(t, "release_lease", g)
				next := grantOf(t, p, name, q.id)
				if g.token <= floor || next <= g.token {
					t.Errorf("I22: %s: tokens %d and %d, want above %d", name, g.token, next, floor)
				}
				p.mustShortRelease(t, "release_lease", grant{name: name, id: q.id, token: next})
			}
		}
	}
}

// The first grant on a timeline that is not on record is made with care: calls for many leave it alone, and it begins a new
// epoch.
func TestI22_FirstGrantOnANewTimelineBeginsAnEpoch(t *testing.T) {
	db := pgtest.Database(t)
	p, waiter := newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
	for way := range shortGrants {
		for _, name := range []string{way, way + ", handed over"} {
			before := freed(t, p, name)
			held, q := grant{}, queued{}
			if strings.HasSuffix(name, "over") {
				held = p.mustAcquire(t, name, time.Minute)
				q = waiter.mustEnqueue(t, name, "exclusive", nil)
			}
			epoch := one[int64](t, p, `UPDATE pglock.installation SET timeline = timeline - 1 RETURNING epoch`) // as after a promotion
			if n := one[int](t, p, `SELECT count(*) FROM pglock.acquire_many($1, ARRAY[gen_random_uuid(), gen_random_uuid()], '{NULL,NULL}', gen_random_uuid(), 'h', '1 min')`,
				[]string{name, uuid.NewString()}); n != 0 {
				t.Errorf("I22: acquire_many answers for %d locks on a timeline that is not on record", n)
			}
			token := int64(0)
			if held.granted {
				p.mustShortRelease(t, "release_lease", held)
				token = grantOf(t, p, name, q.id)
			} else if g, err := p.shortGrant(t.Context(), way, name, uuid.New()); err != nil || g.granted != (way != "acquire_many") {
				t.Errorf("I22: %s: %+v, %v", name, g, err)
			} else if token = g.token; !g.granted {
				token = p.mustAcquire(t, name, time.Minute).token
			}
			if token>>44 != epoch+1 || token <= before.token {
				t.Errorf("I22: %s: token %d of epoch %d, want epoch %d", name, token, token>>44, epoch+1)
			}
			if got := one[int64](t, p, `SELECT epoch FROM pglock.installation`); got != epoch+1 {
				t.Errorf("I22: the record has epoch %d, want %d", got, epoch+1)
			}
		}
	}
}

// Tokens of a lock ascend though the sequence was set back, as by a failover that nobody has noticed.
func TestI2_ShortGrantsAscendThoughTheSequenceWasSetBack(t *testing.T) {
	db := pgtest.Database(t)
	p, waiter := newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
	for way := range shortGrants {
		p.exec(t, `SELECT setval('pglock.fencing_token_seq', 1000)`)
		last := freed(t, p, way)
		p.exec(t, `SELECT setval('pglock.fencing_token_seq', 1)`)
		for range 3 {
			g := p.mustShort(t, way, way)
			q := waiter.mustEnqueue(t, way, "exclusive", nil)
			p.mustShortRelease(t, "release_lease", g)
			next := grant{name: way, id: q.id, token: grantOf(t, p, way, q.id)}
			if g.token <= last.token || next.token <= g.token {
				t.Errorf("I2: %s: tokens %d and %d after %d", way, g.token, next.token, last.token)
			}
			p.mustShortRelease(t, "release_lease", next)
			last = next
		}
	}
}

// Calls for many that name the same locks in opposite orders do not wait for each other in a circle.
func TestI25_CallsForManyInOppositeOrdersDoNotDeadlock(t *testing.T) {
	db := pgtest.Database(t)
	many := `SELECT pglock.acquire_many($1::text[], ARRAY(SELECT gen_random_uuid() FROM unnest($1::text[])), array_fill(NULL::uuid, ARRAY[cardinality($1::text[])]), gen_random_uuid(), 'h', '1 min')`
	each := `SELECT pglock.acquire_each(names, ARRAY(SELECT gen_random_uuid() FROM unnest(names)), gen_random_uuid(), array_fill('h'::text, n), array_fill('1 min'::interval, n),
		array_fill(NULL::jsonb, n), array_fill('exclusive'::text, n), array_fill(NULL::int, n), array_fill(false, n), '10 s', array_fill(NULL::uuid, n), array_fill(false, n),
		array_fill(1, n)) FROM (SELECT $1::text[] AS names, ARRAY[cardinality($1::text[])] AS n) x`
	// They give up a wait that is longer than a moment; here they may wait, so that a circle would be one.
	newPeer(t, db.URL()).exec(t, `DO $$ DECLARE f regprocedure; BEGIN
		FOR f IN SELECT oid FROM pg_proc WHERE proname IN ('acquire_many', 'acquire_each') LOOP EXECUTE format('ALTER FUNCTION %s RESET lock_timeout', f); END LOOP; END $$`)
	for what, sql := range map[string][2]string{"acquire_many": {many, many}, "acquire_each": {each, each}, "one of each": {many, each}} {
		t.Run(what, func(t *testing.T) {
			gate, a, b, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
			name := func(s string) string { return what + " " + s }
			// Names are new, so that who comes second waits for the first. The first is held up in the middle.
			gate.exec(t, `BEGIN; SELECT pglock.acquire('`+name("m")+`', gen_random_uuid(), gen_random_uuid(), 'gate', '1 min')`)
			done := make(chan error, 2)
			go func() {
				_, err := a.Exec(t.Context(), sql[0], []string{name("z"), name("m"), name("a")})
				done <- err
			}()
			a.awaitBlocked(t, look)
			go func() {
				_, err := b.Exec(t.Context(), sql[1], []string{name("a"), name("z")})
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

// A call for many that meets somebody who is using a new name for the first time, and does not end, gives up soon, and has done
// nothing: the members are asked for alone.
func TestI13_CallsForManyDoNotWaitForLong(t *testing.T) {
	db := pgtest.Database(t)
	other, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	other.exec(t, `BEGIN; SELECT pglock.acquire('new', gen_random_uuid(), gen_random_uuid(), 'other', '1 min')`)
	for _, way := range []string{"acquire_many", "acquire_each"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if g, err := p.shortGrant(ctx, way, "new", uuid.New()); state(err) != "55P03" || g.granted {
			t.Errorf("%s: %+v, %v; want 55P03", way, g, err)
		}
	}
	other.exec(t, `ROLLBACK`)
	if n := one[int](t, p, `SELECT count(*) FROM pglock.locks`); n != 0 {
		t.Errorf("%d locks", n)
	}
}

// A grant in a short way touches no fence, which a transaction may hold that writes with the token of another lock.
func TestI25_ShortGrantsAndReleasesTouchNoFence(t *testing.T) {
	db := pgtest.Database(t)
	p, writer := newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
	was, g := writer.mustAcquire(t, "of the writer before", time.Minute), writer.mustAcquire(t, "of the writer", time.Minute)
	for way := range shortGrants {
		freed(t, p, way)
		if err := writer.fence(t.Context(), was, way); err != nil { // there is a fence that others see
			t.Fatal(err)
		}
		writer.exec(t, `BEGIN`)
		if err := writer.fence(t.Context(), g, way); err != nil {
			t.Fatal(err)
		}
		p.exec(t, `SET lock_timeout = '1ms'`)
		own := p.mustShort(t, way, way)
		p.mustShortRelease(t, "release_lease", own)
		p.exec(t, `SET lock_timeout = '3s'`)
		writer.exec(t, `COMMIT`)
		if at := one[int64](t, p, `SELECT last_token FROM pglock.fences WHERE resource = $1`, way); at != g.token {
			t.Errorf("I25: %s has moved the fence to %d, it stood at %d", way, at, g.token)
		}
	}
}

// A standby does not say of any lease that it runs.
func TestI23_StandbyChecksNoneOfManyLeases(t *testing.T) {
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	look := newPeer(t, primary.url)
	g := look.mustShort(t, "acquire_many", "x")
	const check = `SELECT count(*) FROM pglock.check_leases('{x}', $1, $2)`
	if n := one[int](t, look, check, []int64{g.token}, []uuid.UUID{g.id}); n != 1 {
		t.Fatalf("the primary answers for %d", n)
	}
	standby.catchUp(t, look)
	there := newPeer(t, standby.url)
	if n := one[int](t, there, check, []int64{g.token}, []uuid.UUID{g.id}); n != 0 {
		t.Errorf("I23: a standby says of %d leases that they run", n)
	}
	for way := range shortGrants { // what calls for many do not answer is asked for with the call for one
		if g, err := there.shortGrant(t.Context(), way, "y", uuid.New()); state(err) != "25006" && (err != nil || way != "acquire_many") || g.granted {
			t.Errorf("I23: %s on a standby: %+v, %v", way, g, err)
		}
	}
	for way := range shortReleases {
		if released, err := there.shortRelease(t.Context(), way, g); state(err) != "25006" || released {
			t.Errorf("I23: %s on a standby: %v, %v", way, released, err)
		}
	}
}
