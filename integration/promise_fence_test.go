package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A fence's row from a dump may carry the ID that a later transaction of this server has. seal does not take it for the
// fence of that transaction, which has not passed it; nor does it take the fence of another transaction, or of its own
// lock under another name.
func TestI4_SealIsOfTheFencesThatThisTransactionHasPassed(t *testing.T) {
	db := pgtest.Parallel(t)
	p, other := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Minute)
	must.Do(t, p.fence(t.Context(), g, "restored"))
	must.Do(t, p.fence(t.Context(), g, "another's"))
	h := other.mustAcquire(t, "y", time.Minute)
	for _, c := range []struct {
		what, resource, forge string // as a superuser's restore
		want                  string
	}{
		{"restored, older", "restored", `UPDATE pglock.fences SET fenced_xact = pg_current_xact_id(),
			advanced_at = transaction_timestamp() - interval '1 us' WHERE resource = $1`, "LK009"},
		{"restored, much older", "restored", `UPDATE pglock.fences SET fenced_xact = pg_current_xact_id(),
			advanced_at = transaction_timestamp() - interval '1 year' WHERE resource = $1`, "LK009"},
		{"of the transaction before", "restored", ``, "LK009"},
		{"of another transaction that has just committed", "another's", `COMMIT`, "LK009"},
		{"never passed", "unknown", ``, "LK009"},
		{"its own", "own", `fence`, ""},
	} {
		p.exec(t, `BEGIN`)
		must.Do(t, p.fence(t.Context(), g, "first"))
		switch c.forge {
		case "":
		case "COMMIT":
			must.Do(t, other.fence(t.Context(), h, c.resource))
		case "fence":
			must.Do(t, p.fence(t.Context(), g, c.resource))
		default:
			p.exec(t, c.forge, c.resource)
		}
		p.exec(t, `SAVEPOINT sealed`)
		for _, all := range []string{`ARRAY['first', $1]`, `ARRAY[$1]`} {
			if _, err := p.Exec(t.Context(), `SELECT pglock.seal(`+all+`)`, c.resource); state(err) != c.want {
				t.Errorf("I4: seal of %s with a fence that is %s: %v, want %q", all, c.what, err, c.want)
			}
			p.exec(t, `ROLLBACK TO sealed`)
		}
		p.exec(t, `ROLLBACK`)
	}
}

// A transaction under a fence is limited to what its lease has left, though its caller names a longer time limit; a
// shorter one counts.
func TestI16_ATimeLimitMakesNoTransactionLongerThanItsLease(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	p.exec(t, `RESET lock_timeout`)
	g := p.mustAcquire(t, "x", time.Minute)
	for _, call := range []string{
		`SELECT pglock.fence($1, $2, $3, p_allow_same_token => true, p_time_limit => $4)`,
		`SELECT pglock.fence_all(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], p_allow_same_token => true,
			p_time_limit => $4)`,
		`SELECT pglock.once('key', $1, $2, $3, p_time_limit => $4)`,
	} {
		for limit, most := range map[time.Duration]time.Duration{time.Hour: time.Minute,
			5 * time.Second: 5 * time.Second} {
			p.exec(t, `BEGIN`)
			p.exec(t, call, g.name, g.token, g.id, limit)
			for _, setting := range []string{"statement_timeout", "idle_in_transaction_session_timeout",
				"lock_timeout"} {
				ms := one[int64](t, p, `SELECT setting::bigint FROM pg_settings WHERE name = $1`, setting)
				if got := time.Duration(ms) * time.Millisecond; got <= 0 || got > most+time.Millisecond {
					t.Errorf("I16: with a time limit of %v and a lease of a minute %s is %v; %s", limit, setting, got,
						call)
				}
			}
			p.exec(t, `ROLLBACK`)
		}
	}
}

// A transaction under several fences is told how long it has: until the first of its leases ends, in whatever order
// they are named.
func TestI16_ATransactionUnderSeveralFencesHasUntilTheFirstLeaseEnds(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	long := 10 * time.Minute
	ttls := map[string]time.Duration{"a": long, "b": time.Minute, "c": long}
	grants := make(map[string]grant)
	for name, ttl := range ttls {
		grants[name] = p.mustAcquire(t, name, ttl)
	}
	for _, names := range [][]string{{"a", "b", "c"}, {"b", "a"}, {"c", "b"}, {"a", "c"}} {
		var tokens []int64
		var ids []uuid.UUID
		least := long
		for _, name := range names {
			tokens, ids, least = append(tokens, grants[name].token), append(ids, grants[name].id), min(least,
				ttls[name])
		}
		p.exec(t, `BEGIN`)
		us := one[int64](t, p, `SELECT remaining_us FROM pglock.fence_all($1, $2, $3,
			p_allow_same_token => true)`, names, tokens, ids)
		ms := one[int64](t, p,
			`SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'`)
		for what, got := range map[string]time.Duration{
			"it is told":       time.Duration(us) * time.Microsecond,
			"it is limited to": time.Duration(ms) * time.Millisecond,
		} {
			if got > least+time.Millisecond || got < least-30*time.Second {
				t.Errorf("I16: under the fences of %v %s %v, want %v", names, what, got, least)
			}
		}
		p.exec(t, `ROLLBACK`)
	}
}

// The same token passes a fence again only for the grant that has passed it: a number that is the same, as after a
// restore into another installation, proves nothing.
func TestI3_TheSameTokenOfAnotherGrantIsStale(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Minute)
	again := func() error {
		_, err := p.Exec(t.Context(), `SELECT pglock.fence($1, $2, $3, p_allow_same_token => true)`, g.name, g.token,
			g.id)
		return err
	}
	for range 2 {
		must.Do(t, again())
	}
	p.exec(t, `UPDATE pglock.fences SET grant_id = gen_random_uuid()`)
	if err := again(); state(err) != "LK002" {
		t.Errorf("I3: the same token of another grant: %v, want LK002", err)
	}
}

// What is done once for a time to come is known until that time and as long after it as it is to be kept, whoever
// tidies up; then it is refused, and later forgotten. A key needs the lease, in the database that granted it.
func TestI3_AKeyOfATimeToComeIsKeptUntilThen(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	of := one[time.Time](t, p, `SELECT clock_timestamp() + interval '10 days'`)
	do := func(key string, of time.Time) (first bool, err error) {
		g := p.mustAcquire(t, key, time.Minute)
		defer p.mustReleaseBy(t, "release_lease", g)
		err = p.QueryRow(t.Context(), `SELECT is_first FROM pglock.once($1, $2, $3, $4, p_of => $5,
			p_keep => '1 h')`, key, g.name, g.token, g.id, of).Scan(&first)
		return first, err
	}
	if first, err := do("x", of); err != nil || !first {
		t.Fatal(first, err)
	}
	var passed time.Duration
	for _, at := range []time.Duration{0, 5 * 24 * time.Hour, 10 * 24 * time.Hour, 10*24*time.Hour + 59*time.Minute} {
		letPass(t, p, at-passed)
		passed = at
		p.exec(t, `SELECT pglock.sweep()`)
		// the clock has stood still, so of comes nearer
		if first, err := do("x", of.Add(-passed)); err != nil || first {
			t.Errorf("I3: after %v the key is done again: %v, %v", at, first, err)
		}
	}
	letPass(t, p, 2*time.Minute)
	passed += 2 * time.Minute
	if first, err := do("y", of.Add(-passed)); state(err) != "LK012" || first {
		t.Errorf("a key that is too old: %v, %v; want LK012", first, err)
	}
	wantCount(t, p, 1, "%d keys are kept, want that of the work that was done", `SELECT count(*) FROM pglock.done_keys`)
	letPass(t, p, 24*time.Hour)
	p.exec(t, `SELECT pglock.sweep()`)
	wantCount(t, p, 0, "%d keys are kept a day longer than they were to be", `SELECT count(*) FROM pglock.done_keys`)

	g := p.mustAcquire(t, "z", time.Minute)
	endNow(t, p, "z") // while it lasts it is right, wherever it belongs
	for what, c := range map[string]struct {
		id       uuid.UUID
		database *uuid.UUID
		want     string
	}{
		"another database's holder": {g.id, &p.key, "LK007"}, "a stranger": {p.key, nil, "LK003"},
		"a holder whose lease has run out": {g.id, nil, "LK001"},
	} {
		if _, err := p.Exec(t.Context(), `SELECT pglock.once('of z', 'z', $1, $2,
			p_database_id => $3)`, g.token, c.id, c.database); state(err) != c.want {
			t.Errorf("once by %s: %v, want %q", what, err, c.want)
		}
	}
}
