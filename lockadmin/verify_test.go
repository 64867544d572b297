package lockadmin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// write puts tenures into the history, as nobody but the schema's owner can. A tenure has its token, slot, mode, limit,
// first and last minute, number and kind; an entry is written when it ends, unless it says at which minute.
func write(t *testing.T, conn *pgx.Conn, tenures string) {
	t.Helper()
	for _, one := range strings.Split(tenures, "\n") {
		var token, slot, limit, number, new int
		var mode, kind string
		var from, to, at float64
		one, written, found := strings.Cut(one, " written ")
		if _, err := fmt.Sscanf(one, "%d %d %s %d %f-%f #%d %s %d", &token, &slot, &mode, &limit, &from, &to, &number,
			&kind, &new); err != nil {
			t.Fatalf("%q: %v", one, err)
		}
		if at = to; found {
			must.Get(fmt.Sscan(written, &at))(t)
		}
		execute(t, conn,
			`INSERT INTO pglock.events (lock_name, holder, session_id, token, slot, mode, capacity, granted_at, ended_at, at, number, kind, new_token)
			SELECT 'a', 'h' || $1::int, gen_random_uuid(), $1::int, $2::int, $3, nullif($4::int, 0), m + $5::float8 * interval '1 min', m + $6::float8 * interval '1 min',
				m + $7::float8 * interval '1 min', nullif($8::int, 0), $9, nullif($10::int, 0) FROM (SELECT timestamptz '2026-01-01 10:00 UTC' AS m) m`,
			token, slot, mode, limit, from, to, at, number, kind, new)
	}
}

func TestVerifyFindsWhatIsWrong(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	for what, tc := range map[string]struct{ history, want string }{
		"nothing": {`
			1 0 exclusive 0 1-2 #1 release 0
			5 0 exclusive 0 2-4 #2 takeover 6
			6 0 exclusive 0 4-5 #3 break 7
			8 0 exclusive 0 5-6 #4 handover 9
			9 0 exclusive 0 6-7 #5 expired 0
			10 0 exclusive 0 8-9 #1 release 0`, ""},
		"readers beside each other": {`
			1 1 shared 0 1-9 #1 release 0
			2 2 shared 0 2-3 #1 release 0
			3 2 shared 0 4-10 #2 release 0
			4 0 exclusive 0 10-11 #1 release 0`, ""},
		"as many as the limit": {`
			1 1 limit 2 1-4 #1 release 0
			2 2 limit 2 2-5 #1 release 0
			3 1 limit 2 4-6 #2 release 0
			4 1 limit 3 6-9 #3 release 0
			5 2 limit 3 6-9 #2 release 0
			6 3 limit 3 6-9 #1 release 0`, ""},
		"an overlap": {`
			1 0 exclusive 0 1-4 #1 release 0
			2 0 exclusive 0 3-5 #2 release 0`, "overlap of 1 and 2 by 1m0s"},
		"an overlap with one that ended first": {`
			2 0 exclusive 0 2-3 #2 release 0
			1 0 exclusive 0 1-4 #1 release 0`, "overlap of 1 and 2 by 1m0s"},
		"an overlap after many": {`
			2 2 shared 0 2-3 #1 release 0
			3 2 shared 0 3-4 #2 release 0
			1 1 shared 0 1-9 #1 release 0
			4 0 exclusive 0 8-10 #1 release 0`, "overlap of 1 and 4 by 1m0s"},
		"a writer beside readers": {`
			3 0 exclusive 0 2-3 #1 release 0
			1 1 shared 0 1-4 #1 release 0
			2 2 shared 0 1-5 #1 release 0`, "overlap of 1 and 3 by 1m0s, overlap of 2 and 3 by 1m0s"},
		"readers beside a limit": {`
			1 1 shared 0 1-4 #1 release 0
			2 2 limit 3 3-5 #1 release 0`, "overlap of 1 and 2 by 1m0s"},
		"two readers in one slot": {`
			1 1 shared 0 1-4 #1 release 0
			2 1 shared 0 3-5 #2 release 0`, "overlap of 1 and 2 by 1m0s"},
		"one more than the limit": {`
			1 1 limit 2 1-4 #1 release 0
			2 2 limit 2 2-5 #1 release 0
			3 3 limit 2 3-6 #1 release 0`, "limit of 2 and 3 by 2m0s"},
		"two limits at once": {`
			1 1 limit 1 1-4 #1 release 0
			2 2 limit 9 2-5 #1 release 0`, "limit of 1 and 2 by 2m0s"},
		"a takeover before the expiry": {`
			1 0 exclusive 0 1-5 #1 takeover 2 written 3
			2 0 exclusive 0 3-6 #2 release 0`, "overlap of 1 and 2 by 2m0s"},
		"a grant over a lease that was not over": {`
			1 0 exclusive 0 1-5 #1 overlap 2 written 3
			2 0 exclusive 0 3-6 #2 release 0`, "overlap of 1 and 2 by 2m0s"},
		"a grant over a lease that had run out but was not over": {`
			1 0 exclusive 0 1-2 #1 overlap 2 written 3
			2 0 exclusive 0 3-6 #2 release 0`, "overlap of 1 and 2 by 0s"},
		"a token that went back": {`
			5 0 exclusive 0 1-2 #1 release 0
			4 0 exclusive 0 3-4 #2 release 0
			6 0 exclusive 0 5-6 #3 release 0`, "token of 5 and 4 by 2m0s, 1 missing 0-4"},
		"a token that went back by the times alone": {`
			4 0 exclusive 0 3-4 #1 release 0 written 3
			5 0 exclusive 0 1-2 #2 release 0 written 4`, "token of 5 and 4 by 2m0s"},
		"a token that went back, of a pruned row": {`
			5 0 exclusive 0 1-2 #1 release 0
			4 0 exclusive 0 3-4 #1 release 0`, "token of 5 and 4 by 2m0s"},
		"a token that went back while the clock did": {`
			5 0 exclusive 0 10-11 #1 release 0
			4 0 exclusive 0 5-6 #2 release 0`, "token of 5 and 4 by 0s, 1 missing 0-4"},
		"a token that went back between slots": {`
			5 1 shared 0 1-2 #1 release 0
			4 2 shared 0 3-4 #1 release 0`, "token of 5 and 4 by 2m0s"},
		"a token twice": {`
			5 0 exclusive 0 1-2 #1 release 0
			5 0 exclusive 0 3-4 #2 release 0`, "token of 5 and 5 by 0s"},
		"a token twice in two slots": {`
			5 1 shared 0 1-2 #1 release 0
			5 2 shared 0 3-4 #1 release 0`, "token of 5 and 5 by 0s"},
		"a token that a break had drawn": {`
			5 0 exclusive 0 1-2 #1 break 7
			6 0 exclusive 0 3-4 #2 release 0`, "token of 5 and 6 by 0s"},
		"a clock that was set back": {`
			1 0 exclusive 0 10-20 #1 release 0
			2 0 exclusive 0 5-6 #2 release 0
			3 0 exclusive 0 19-21 #3 release 0`, "clock of 2 and 1 by 5m0s, clock of 1 and 3 by 1m0s"},
		"a clock that was set back after an overlap": {`
			1 0 exclusive 0 1-4 #1 release 0
			2 0 exclusive 0 3-5 #2 release 0
			3 0 exclusive 0 20-30 #3 release 0
			4 0 exclusive 0 12-13 #4 release 0`, "overlap of 1 and 2 by 1m0s, clock of 4 and 3 by 8m0s"},
		"a clock that was set back during a tenure": {`
			1 0 exclusive 0 10-5 #1 release 0
			2 0 exclusive 0 6-7 #2 release 0`, "clock of 1 and 1 by 5m0s, clock of 2 and 1 by 4m0s"},
		"a takeover before a clock was set back over it": {`
			1 0 exclusive 0 10-20 #1 release 0
			2 0 exclusive 0 15-19 #2 takeover 3 written 16
			3 0 exclusive 0 16-17 #3 release 0`, "clock of 2 and 3 by 3m0s, clock of 1 and 2 by 4m0s, clock of 1 and " +
			"3 by 1m0s"},
		"an overlap after a clock was set back": {`
			1 0 exclusive 0 10-20 #1 release 0
			2 0 exclusive 0 5-9 #2 release 0
			3 0 exclusive 0 12-15 #3 release 0
			4 0 exclusive 0 13-16 #4 release 0`, "overlap of 3 and 4 by 2m0s, clock of 2 and 1 by 5m0s, clock of 1 " +
			"and 3 by 3m0s, clock of 1 and 4 by 3m0s"},
		"a takeover before the expiry after a clock was set back": {`
			1 0 exclusive 0 10-20 #1 release 0
			2 0 exclusive 0 5-9 #2 release 0
			3 0 exclusive 0 10-15 #3 takeover 4 written 12
			4 0 exclusive 0 21-22 #4 release 0`, "overlap of 3 and 4 by 3m0s, clock of 2 and 1 by 5m0s, clock of 1 " +
			"and 3 by 5m0s"},
		"a clock that was set back over a limit": {`
			1 1 limit 1 10-20 #1 release 0
			2 2 limit 1 5-9 #1 release 0
			3 2 limit 1 12-13 #2 release 0`, "clock of 2 and 1 by 5m0s, clock of 1 and 3 by 1m0s"},
		"one more than the limit after a clock was set back": {`
			1 1 limit 1 10-30 #1 release 0
			2 1 limit 1 5-9 #2 release 0
			3 1 limit 1 12-16 #3 release 0
			4 2 limit 1 13-17 #1 release 0`, "limit of 3 and 4 by 3m0s, clock of 2 and 1 by 5m0s, clock of 1 and 3 " +
			"by 4m0s"},
		"gaps": {`
			3 0 exclusive 0 1-2 #3 release 0
			5 0 exclusive 0 2-4 #5 release 0
			9 0 exclusive 0 5-6 #1 release 0
			10 0 exclusive 0 6-7 #4 release 0
			19 1 shared 0 8-9 #2 release 0`, "2 missing 0-3, 1 missing 3-5, 2 missing 9-10, 1 missing 0-19"},
	} {
		execute(t, conn, `TRUNCATE pglock.events`)
		write(t, conn, strings.ReplaceAll(strings.TrimSpace(tc.history), "\t", ""))
		for _, name := range []string{"a", ""} {
			v := must.Get(admin.Verify(t.Context(), name))(t)
			if got := strings.Join(findings(v), ", "); got != tc.want || v.Locks != 1 ||
				v.Tenures != int64(strings.Count(tc.history, "#")) {
				t.Errorf("%s: %q of %d tenures of %d locks, want %q", what, got, v.Tenures, v.Locks, tc.want)
			}
		}
	}
}

// findings are what Verify has found, in words.
func findings(v lockadmin.Verification) (all []string) {
	for _, f := range slices.Concat(v.Violations, v.Clock) {
		all = append(all, fmt.Sprintf("%s of %d and %d by %v", f.Kind, f.First.Token, f.Second.Token, f.By))
	}
	for _, g := range v.Gaps {
		all = append(all, fmt.Sprintf("%d missing %d-%d", g.Missing, g.After, g.Before))
	}
	return all
}

// The leases of the present belong to the record.
func TestVerifyComparesTheHistoryWithThePresent(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
	grant(t, conn, "a", "one", "1 h", "").release(t, conn)
	grant(t, conn, "a", "two", "1 h", "")
	verify := func(want string) {
		t.Helper()
		v := must.Get(admin.Verify(t.Context(), "a"))(t)
		if got := strings.Join(findings(v), ", "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	verify("")
	execute(t, conn, `UPDATE pglock.events SET ended_at = ended_at + interval '1 min' WHERE lock_name = 'a'`)
	if v, err := admin.Verify(t.Context(), "a"); err != nil || len(v.Violations) != 1 ||
		v.Violations[0].Kind != lockadmin.ViolationOverlap ||
		v.Violations[0].Second.Kind != lockadmin.TenureHeld || v.Violations[0].Second.ID != 0 ||
		v.Violations[0].First.ID == 0 {
		t.Errorf("%+v, %v; want an overlap with the present lease", v, err)
	}
	execute(t, conn,
		`UPDATE pglock.events SET ended_at = ended_at - interval '1 min', token = 1000000 WHERE lock_name = 'a'`)
	if v, err := admin.Verify(t.Context(), ""); err != nil || len(v.Violations) != 1 ||
		v.Violations[0].Kind != lockadmin.ViolationToken || v.Violations[0].First.Token != 1000000 {
		t.Errorf("%+v, %v; want a token that went back", v, err)
	}
	execute(t, conn, `DELETE FROM pglock.events WHERE lock_name = 'a'`)
	verify("1 missing 0-2")
	execute(t, conn, `UPDATE pglock.locks SET expires_at = '-infinity', grants = 7`)
	execute(t, conn, `UPDATE pglock.events SET lock_name = 'b'`) // nothing but a free row
	verify("7 missing 0-0")
}

// Readers whose tenures fill several pages, with one that began before all of them and still runs.
func TestVerifyComparesTenuresOfDifferentPages(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	execute(t, conn,
		`INSERT INTO pglock.events (lock_name, holder, token, slot, mode, granted_at, ended_at, at, number, kind)
		SELECT 'a', 'h', n, 2, 'shared', m + n * interval '1 s', m + n * interval '1 s', m + n * interval '1 s', n, 'release'
		FROM generate_series(1, 12000) n, (SELECT timestamptz '2026-01-01 10:00 UTC') x (m)`)
	execute(t, conn,
		`INSERT INTO pglock.events (lock_name, holder, token, slot, mode, granted_at, ended_at, number, kind)
		SELECT 'a', 'writer', 12001, 0, 'exclusive', m, m + interval '1 s', 1, 'release' FROM (SELECT timestamptz '2026-01-02 10:00 UTC') x (m)`)
	execute(t, conn,
		`INSERT INTO pglock.locks (name, slot, token, grant_id, session_id, holder, mode, ttl, acquired_at, renewed_at, expires_at, grants)
		SELECT 'a', 1, 0, gen_random_uuid(), gen_random_uuid(), 'reader', 'shared', '1 h', '2026-01-01 10:00 UTC', now(), now() + interval '1 h', 1`)
	v, err := admin.Verify(t.Context(), "")
	if got, want := strings.Join(findings(v), ", "), "overlap of 0 and 12001 by 1s"; err != nil || got != want ||
		v.Tenures != 12002 {
		t.Errorf("%q of %d, %v; want %q of 12002", got, v.Tenures, err, want)
	}
}

func TestVerifyExplainsGaps(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	ends := func(n int) {
		for range n {
			grant(t, conn, "a", "h", "1 h", "").release(t, conn)
		}
	}
	causes := func(want ...lockadmin.GapCause) {
		t.Helper()
		v, err := admin.Verify(t.Context(), "a")
		var got []lockadmin.GapCause
		for _, g := range v.Gaps {
			got = append(got, g.Cause)
		}
		if err != nil || !slices.Equal(got, want) || v.ViolationCount != 0 {
			t.Errorf("%+v, %v; want gaps for %v", v, err, want)
		}
	}
	ends(2)
	setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
	ends(2)
	causes(lockadmin.GapLevel)
	setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryLosses})
	ends(2)
	setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
	ends(3)
	causes(lockadmin.GapLevel, lockadmin.GapLevel)
	execute(t, conn, `DELETE FROM pglock.events WHERE id = (SELECT max(id) - 1 FROM pglock.events)`)
	causes(lockadmin.GapLevel, lockadmin.GapLevel, lockadmin.GapUnknown)
	execute(t, conn, `UPDATE pglock.events SET at = at - interval '100 d' WHERE lock_name = 'a' AND number < 7`)
	execute(t, conn, `SELECT pglock.sweep()`)
	causes(lockadmin.GapPruned, lockadmin.GapUnknown)
}
