package lockadmin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// writeTree puts tenures of several locks into the history: each has its lock, "subtree" or "plain", mode, session,
// token, and first and last minute.
func writeTree(t *testing.T, conn *pgx.Conn, tenures string) {
	t.Helper()
	all := strings.Split(tenures, "\n")
	slices.SortStableFunc(all, func(a, b string) int {
		ends := func(s string) string { return s[strings.LastIndex(s, "-")+1:] }
		return strings.Compare(ends(a), ends(b))
	})
	for _, one := range all {
		var lock, what, mode string
		var session, token int
		var from, to float64
		if _, err := fmt.Sscanf(one, "%s %s %s %d %d %f-%f", &lock, &what, &mode, &session, &token, &from,
			&to); err != nil {
			t.Fatalf("%q: %v", one, err)
		}
		slot := map[string]int{"exclusive": 0, "shared": token}[mode]
		execute(t, conn, `INSERT INTO pglock.events (lock_name, holder, session_id, token, slot, mode, granted_at,
				ended_at, at, number, kind, subtree)
			SELECT $1, 'h', md5($2::int::text)::uuid, $3::int, $4::int, $5, m + $6::float8 * interval '1 min', m + $7::float8 * interval '1 min',
				m + $7::float8 * interval '1 min', 0, 'release', $8 FROM (SELECT timestamptz '2026-01-01 10:00 UTC' AS m) m`,
			lock, session, token, slot, mode, from, to, what == "subtree")
	}
}

func TestVerifyComparesSubtreesWithWhatLiesBelow(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	for what, tc := range map[string]struct{ history, want string }{
		"nothing": {`
			t subtree exclusive 1 1 1-2
			t/a plain exclusive 2 2 2-3
			t subtree exclusive 1 3 3-4
			t/a plain exclusive 1 4 3.5-3.6
			t/a/b plain exclusive 2 5 4-9
			t! plain exclusive 3 6 1-9
			t0 plain exclusive 3 7 1-9
			ta plain exclusive 3 8 1-9
			t plain exclusive 3 9 5-6`, ""},
		"below a subtree": {`
			t subtree exclusive 1 1 1-4
			t! plain exclusive 3 2 1-9
			t/a/b plain exclusive 2 3 2-3`, "overlap t/a/b under t: 1 3"},
		"a subtree over what lies below": {`
			t/a plain exclusive 2 1 1-4
			t subtree exclusive 1 2 3-9`, "overlap t/a under t: 1 2"},
		"an early one of many, which lasts": {`
			t subtree shared 1 1 1-9
			t subtree shared 2 2 1.1-2
			t subtree shared 3 3 1.2-2
			t/a plain exclusive 4 4 5-6`, "overlap t/a under t: 1 4"},
		"readers of both": {`
			t subtree shared 1 1 1-4
			t/a plain shared 2 2 2-3
			t/b subtree shared 2 3 2-3`, ""},
		"a subtree below another": {`
			t subtree exclusive 1 1 1-4
			t/a subtree shared 2 2 2-3
			t/a/b plain shared 3 3 2-3`, "overlap t/a under t: 1 2, overlap t/a/b under t: 1 3"},
		"a lease that is no subtree": {`
			t plain exclusive 1 1 1-4
			t/a plain exclusive 2 2 2-3`, ""},
		"the same session": {`
			t subtree exclusive 1 1 1-4
			t/a plain exclusive 1 2 2-3
			t/b plain exclusive 1 3 3-9`, ""},
	} {
		execute(t, conn, "DELETE FROM pglock.events")
		writeTree(t, conn, strings.TrimSpace(tc.history))
		v, err := admin.Verify(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := foundInTrees(v); got != tc.want {
			t.Errorf("%s: %s, want %q", what, got, tc.want)
		}
		below, _, _ := strings.Cut(strings.TrimPrefix(tc.want, "overlap "), " ")
		if below == "" {
			continue
		}
		if v, err = admin.Verify(t.Context(), below); err != nil {
			t.Fatal(err)
		}
		if first, _, _ := strings.Cut(tc.want, ", "); foundInTrees(v) != first || v.Locks != 1 {
			t.Errorf("%s, %s alone: %s of %d locks", what, below, foundInTrees(v), v.Locks)
		}
	}
}

// A clock that was set back explains nothing about a tenure that was granted later.
func TestVerifyFindsAnOverlapUnderASubtreeAfterTheClockWasSetBack(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	for _, one := range []string{"t subtree exclusive 1 1 10-20", "t subtree exclusive 1 2 5-9",
		"t subtree exclusive 1 3 12-15", "t/a plain exclusive 2 4 13-16"} {
		writeTree(t, conn, one)
	}
	for _, name := range []string{"t/a", ""} {
		v := must.Get(admin.Verify(t.Context(), name))(t)
		if got := foundInTrees(v); got != "overlap t/a under t: 3 4" {
			t.Errorf("verify %q: %q", name, got)
		}
	}
}

func foundInTrees(v lockadmin.Verification) string {
	var all []string
	for _, f := range v.Violations {
		all = append(all, fmt.Sprintf("%s %s under %s: %d %d", f.Kind, f.Lock, f.Subtree, f.First.Token,
			f.Second.Token))
	}
	return strings.Join(all, ", ")
}

// Every end of a lease notes whether it covered a subtree.
func TestTheHistoryKnowsSubtreesByEveryEnd(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	setHistory(t, e.admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
	runOut := func() {
		execute(t, e.conn, `UPDATE pglock.locks SET expires_at = clock_timestamp(), watched_until = NULL
			WHERE name = 't' AND expires_at > clock_timestamp()`)
	}
	release := func(l *pglock.Lease) {
		t.Helper()
		must.Do(t, l.Release(t.Context()))
	}
	release(e.hold("t", pglock.WithSubtree()))
	e.hold("t", pglock.WithSubtree())
	must.Get(e.admin.Break(t.Context(), "t", "a test", lockadmin.BreakOptions{}))(t)
	for _, opts := range [][]pglock.AcquireOption{nil, {pglock.WithShared()}} {
		e.hold("t", append(opts, pglock.WithSubtree())...)
		runOut()
		release(e.hold("t", opts...))
	}
	e.hold("t", pglock.WithSubtree())
	runOut()
	must.Get(e.admin.Prune(t.Context(), lockadmin.PruneOptions{Idle: new(time.Microsecond)}))(t)
	var got []string
	for entry, err := range e.admin.History(t.Context(), lockadmin.HistoryQuery{Lock: "t"}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(entry.Kind, " ", entry.Mode, map[bool]string{true: " subtree"}[entry.Subtree]))
	}
	slices.Reverse(got)
	if want := []string{"release exclusive subtree", "break exclusive subtree", "takeover exclusive subtree",
		"release exclusive", "takeover shared subtree", "release shared", "expired exclusive subtree"}; !slices.Equal(
		got, want) {
		t.Errorf("the history has %q, want %q", got, want)
	}
}

// What the rows of locks say now is compared, too.
func TestVerifyComparesAPresentSubtreeWithWhatLiesBelow(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	subtree := e.hold("tenants/7", pglock.WithSubtree())
	below := grant(t, e.conn, "elsewhere", "importer", "1 h", "")
	v, err := e.admin.Verify(t.Context(), "")
	if err != nil || v.ViolationCount > 0 || v.ClockCount > 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	execute(t, e.conn, "UPDATE pglock.locks SET name = 'tenants/7/import' WHERE name = 'elsewhere'")
	v, err = e.admin.Verify(t.Context(), "")
	want := fmt.Sprintf("overlap tenants/7/import under tenants/7: %d %d", subtree.Token(), below.token)
	if err != nil || foundInTrees(v) != want {
		t.Errorf("%s, %v, want %s", foundInTrees(v), err, want)
	}
}

func TestVerifyBlamesTheClockUnderASubtreeIfItWasSetBackBehindTheEarlierGrant(t *testing.T) {
	for _, all := range [][]string{
		{"t subtree exclusive 1 1 10-20", "t/a plain exclusive 2 2 5-12"},
		{"t/a plain exclusive 2 1 10-20", "t subtree exclusive 1 2 5-12"},
	} {
		db := pgtest.Database(t)
		conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
		for _, one := range all {
			writeTree(t, conn, one)
		}
		for _, name := range []string{"t/a", ""} {
			v := must.Get(admin.Verify(t.Context(), name))(t)
			if got := foundInTrees(v); got != "" || len(v.Clock) != 1 {
				t.Errorf("%q, verify %q: %q, and of the clock %v", all, name, got, v.Clock)
			}
		}
	}
}
