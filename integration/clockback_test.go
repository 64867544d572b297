package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// setBack moves the times of a lock's leases into the future, as if the server's clock had been set back by so much.
func setBack(t *testing.T, look *peer, name string, by time.Duration) {
	t.Helper()
	look.exec(t, `UPDATE pglock.locks SET acquired_at = acquired_at + $2, renewed_at = renewed_at + $2,
		expires_at = expires_at + $2, ended_at = ended_at + $2 WHERE name = $1`, name, by)
}

// A lease has run out, and another was granted over it, which lies in another row of the lock. Then the server's clock
// is set back to before the first one's expiry. Nothing revives it: no call of its holder, and no fenced transaction
// that it began in time.
func TestI1_I4_I6_AClockThatIsSetBackRevivesNoLeaseOverWhichAnotherWasGranted(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for _, modes := range [][2]string{{"exclusive", "shared"}, {"exclusive", "limit 1"}, {"shared", "exclusive"},
		{"limit 1", "exclusive"}} {
		name := modes[0] + ", then " + modes[1]
		first := p.party("first", modes[0], time.Minute).mustGet(t, name)
		sealing, committing := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
		for resource, tx := range map[string]*peer{"sealed ": sealing, "committed ": committing} {
			tx.exec(t, `BEGIN`)
			tx.exec(t, `SELECT FROM pglock.fence($1, $2, $3, $4)`, name, first.token, first.id, resource+name)
		}
		endNow(t, p, name)
		p.party("second", modes[1], time.Minute).mustGet(t, name)
		setBack(t, p, name, time.Hour)

		for _, waits := range []bool{false, true} {
			for _, again := range []bool{false, true} {
				if err := first.ask(t, name, waits, again); first.granted || (waits || again) && state(err) != "LK008" {
					t.Errorf("I6: %s, waits %v, again %v: granted %v, %v, want LK008", name, waits, again,
						first.granted, err)
				}
			}
		}
		if outcome, _ := first.renew(t); outcome != "expired" {
			t.Errorf("I1: %s: the renewal is %s", name, outcome)
		}
		if outcome := one[string](t, p,
			`SELECT outcome FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid],
				ARRAY[$4::int], '1 s', ARRAY['1 min'::interval])`, name, first.token, first.id,
			first.slot); outcome != "expired" {
			t.Errorf("I1: %s: the extension is %s", name, outcome)
		}
		if why := first.lost(t); why != "expired" {
			t.Errorf("I1: %s: the check says %q", name, why)
		}
		if _, err := p.Exec(t.Context(), `SELECT pglock.fence($1, $2, $3)`, name, first.token,
			first.id); state(err) != "LK001" {
			t.Errorf("I4: %s: the fence says %v", name, err)
		}
		if _, err := sealing.Exec(t.Context(), `SELECT pglock.seal(ARRAY[$1])`, "sealed "+name); state(err) != "LK001" {
			t.Errorf("I4: %s: the seal says %v", name, err)
		}
		if _, err := committing.Exec(t.Context(), `COMMIT`); state(err) != "LK001" {
			t.Errorf("I4: %s: the COMMIT says %v", name, err)
		}
		if outcome := one[string](t, p, `SELECT outcome FROM pglock.hand_over($1, $2, $3, 'anybody')`,
			name, first.token, first.id); first.slot == 0 && outcome != "expired" {
			t.Errorf("I1: %s: the hand-over is %s", name, outcome)
		}
		for way, ends := range map[string]string{
			"a release":        `SELECT released FROM pglock.release_lease($1, $2, $3) WHERE $4::uuid IS NOT NULL`,
			"several releases": `SELECT released FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[NULL::int]) WHERE $4::uuid IS NOT NULL`,
			"a give_up":        `SELECT ended FROM pglock.give_up($4, ARRAY[$1], ARRAY[$3::uuid]) WHERE $2 > 0`,
		} {
			if one[bool](t, p, ends, name, first.token, first.id, first.key) {
				t.Errorf("I1: %s: %s ends a lease that is over", name, way)
			}
		}
		if _, err := p.Exec(t.Context(), `SELECT pglock.break_lock($1, 'test', 'test', $2)`, name,
			first.token); state(err) != "LK006" {
			t.Errorf("I1: %s: the break says %v, want LK006", name, err)
		}
		want := "second"
		if modes[1] == "shared" { // the lease that is over is in no reader's way either
			p.party("third", "shared", time.Minute).mustGet(t, name)
			want += " third"
		}
		if held := heldBy(t, p, name); held != want {
			t.Errorf("I1: %s: %q hold the lock", name, held)
		}
	}
}

// A lease was extended and has ended. The next one of its row does not last for longer than its TTL says, also where
// the clock is set back before it is first renewed.
func TestAnExtensionEndsWithItsLease(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	const renews = `SELECT remaining_us FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid],
		ARRAY[$4::int], p_lasting => $5)`
	hour := []time.Duration{time.Hour}
	for way, grants := range map[string]string{
		"acquire_lease":  grantWays["acquire_lease"],
		"acquire_leases": grantWays["acquire_leases"],
		"grant_head":     grantWays["acquire_lease"],
		"grant_slots":    `SELECT granted, token FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min', p_mode => 'shared')`,
	} {
		slot := 0
		if way == "grant_slots" {
			slot = 1
		}
		var granted bool
		var token int64
		for _, lasting := range [][]time.Duration{hour, nil} {
			id := uuid.New()
			if err := p.QueryRow(t.Context(), grants, way, id.String(), p.key.String()).Scan(&granted,
				&token); err != nil || !granted {
				t.Fatalf("%s: granted %v, %v", way, granted, err)
			}
			if lasting == nil {
				setBack(t, p, way, time.Hour)
			}
			left := time.Duration(one[int64](t, p, renews, way, token, id.String(), slot, lasting)) * time.Microsecond
			if lasting == nil && left > time.Minute {
				t.Errorf("%s: the renewed lease lasts %v, its TTL is a minute", way, left)
			} else if lasting != nil && left < time.Hour-time.Minute {
				t.Fatalf("%s: the extended lease lasts %v", way, left)
			}
			if way == "grant_head" {
				endNow(t, p, way) // then the lock is free, but not for a plain grant
			} else {
				p.mustEnd(t, grant{name: way, id: id, token: token})
			}
		}
	}
}

// A lease may last for longer than a timeout can be when the clock is set back by weeks. Its fence is passed all the
// same, and the server's limits are what they can be.
func TestTheFenceIsPassedWhereTheClockWasSetBackByAMonth(t *testing.T) {
	db := pgtest.Parallel(t)
	for _, timeouts := range []string{"", "SET statement_timeout = '1min'"} {
		p := newPeer(t, db.URL())
		p.exec(t, timeouts)
		name := "after " + timeouts
		g := p.mustAcquire(t, name, time.Minute)
		setBack(t, p, name, 30*24*time.Hour)
		p.exec(t, `BEGIN`)
		if err := p.fence(t.Context(), g, name); err != nil {
			t.Errorf("%q: the fence says %v", timeouts, err)
			continue
		}
		if _, err := p.Exec(t.Context(), `SELECT pglock.seal(ARRAY[$1])`, name); err != nil {
			t.Errorf("%q: the seal says %v", timeouts, err)
		}
		p.exec(t, `COMMIT`)
	}
}

// The clock is set back between BEGIN and the fence, or the bypass. What this transaction has passed still is its own,
// for its guards and for the seal, and COMMIT checks it.
func TestI3_I4_AClockThatIsSetBackAfterBeginDeniesNoFenceThatWasPassed(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	p.exec(t, `CREATE TABLE vaults (id int)`)
	p.exec(t, `SELECT pglock.guard_table('vaults')`)
	g := p.mustAcquire(t, "x", time.Minute)
	p.exec(t, `DO $do$ DECLARE f record; BEGIN
		FOR f IN SELECT pg_get_functiondef(o.oid) AS text FROM pg_proc o WHERE o.pronamespace = 'pglock'::regnamespace
			AND o.proname IN ('fence', 'pass_first', 'bypass_guards') LOOP
			EXECUTE regexp_replace(f.text, '(pg_catalog\.)?(clock|statement)_timestamp\(\)',
				'(pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.interval ''2 s'')', 'g');
		END LOOP; END $do$`)
	for _, begin := range []string{"BEGIN; -- a new row", "BEGIN; -- a row",
		"BEGIN ISOLATION LEVEL SERIALIZABLE"} {
		p.exec(t, begin)
		for _, resource := range []string{"vaults", "another"} {
			p.exec(t, `SELECT pglock.fence($1, $2, $3, $4, true)`, "x", g.token, g.id, resource)
		}
		for what, uses := range map[string]string{
			"the guard": `INSERT INTO vaults VALUES (1)`, "the seal": `SELECT pglock.seal('{vaults}')`,
			"the seal of both": `SELECT pglock.seal('{vaults, another}')`,
		} {
			p.exec(t, `SAVEPOINT s`)
			if _, err := p.Exec(t.Context(), uses); err != nil {
				t.Errorf("%s: %s says %v", begin, what, err)
			}
			p.exec(t, `ROLLBACK TO s`)
		}
		if _, err := p.Exec(t.Context(), `COMMIT`); err != nil {
			t.Errorf("%s: COMMIT says %v", begin, err)
		}
	}
	p.exec(t, `BEGIN; SELECT pglock.bypass_guards('because', 'alice')`)
	if _, err := p.Exec(t.Context(), `INSERT INTO vaults VALUES (1)`); err != nil {
		t.Errorf("after a bypass: %v", err)
	}
	p.exec(t, `ROLLBACK`)
}
