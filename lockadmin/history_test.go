package lockadmin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// lease is one that a test holds with the functions of the schema alone.
type lease struct {
	name, grantID string
	token         int64
	slot          int
}

// grant acquires a lock, which must be free. more are further arguments of acquire_lease.
func grant(t *testing.T, conn *pgx.Conn, name, holder, ttl, more string) lease {
	t.Helper()
	l := lease{name: name}
	if err := conn.QueryRow(t.Context(),
		`SELECT g::text, a.token, coalesce((a.more ->> 'slot')::int, 0) FROM gen_random_uuid() g,
		pglock.acquire_lease($1, g, g, $2, $3::text::interval`+more+`) a WHERE a.granted`, name, holder,
		ttl).Scan(&l.grantID, &l.token, &l.slot); err != nil {
		t.Fatalf("lock %s for %s: %v", name, holder, err)
	}
	return l
}

func (l lease) release(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	var released bool
	if err := conn.QueryRow(t.Context(), `SELECT released FROM pglock.release_lease($1, $2, $3::text::uuid, $4)`,
		l.name, l.token, l.grantID, l.slot).Scan(&released); err != nil || !released {
		t.Fatalf("release of %+v: %t, %v", l, released, err)
	}
}

// runOut sets the expiry of a lease to the present.
func (l lease) runOut(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1 AND slot = $2`, l.name,
		l.slot)
}

func setHistory(t *testing.T, admin *lockadmin.Admin, c lockadmin.HistoryChange) lockadmin.HistorySettings {
	t.Helper()
	s := must.Get(admin.SetHistory(t.Context(), c))(t)
	return s
}

// events are those of a lock in words, the oldest first.
func events(t *testing.T, admin *lockadmin.Admin, name string) []string {
	t.Helper()
	all := texts(t, admin.History(t.Context(), lockadmin.HistoryQuery{Lock: name}),
		func(e lockadmin.HistoryEntry) string {
			if e.Session == "" || e.GrantedAt.IsZero() || e.EndedAt.Before(e.GrantedAt) || e.At.Before(e.EndedAt) {
				t.Errorf("%+v: its session is missing, or its times are not in order", e)
			}
			text := fmt.Sprint(e.Kind, " of ", e.Holder, " ", e.Mode, "/", e.Slot, " number ", e.Number)
			if e.Actor != "" {
				text += " by " + e.Actor
			}
			return text
		})
	slices.Reverse(all)
	return all
}

// everyEnd lets a lease of every mode end in every way.
func everyEnd(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	grant(t, conn, "gone", "last", "1 h", "").runOut(t, conn)
	execute(t, conn, `SELECT pglock.prune_locks('0 s')`)
	if n := len(column(t, conn, `SELECT name FROM pglock.locks WHERE name = 'gone'`)); n != 0 {
		t.Fatal("the lock was not pruned")
	}

	grant(t, conn, "a", "one", "1 h", "").release(t, conn)
	grant(t, conn, "a", "two", "1 h", "").runOut(t, conn)
	three := grant(t, conn, "a", "three", "1 h", "")
	execute(t, conn,
		`SELECT pglock.acquire_lease('a', gen_random_uuid(), gen_random_uuid(), 'four', '1 h', p_wait => true, p_session_ttl => '1 h')`)
	execute(t, conn, `SELECT pglock.hand_over('a', $1, $2::text::uuid, 'four')`, three.token, three.grantID)
	execute(t, conn,
		`SELECT pglock.acquire_lease('a', gen_random_uuid(), gen_random_uuid(), 'five', '1 h', p_wait => true, p_session_ttl => '1 h')`)
	execute(t, conn, `SELECT pglock.break_lock('a', 'stuck', 'me')`) // five has it now
	execute(t, conn,
		`SELECT pglock.give_up(k, '{a}', ARRAY[g]) FROM (SELECT l.grant_id AS g, gen_random_uuid() AS k FROM pglock.locks l WHERE l.name = 'a') l`)
	grant(t, conn, "a", "six", "1 h", "").release(t, conn)

	one, two := grant(t, conn, "readers", "r1", "1 h", ", p_mode => 'shared'"), grant(t, conn, "readers", "r2", "1 h",
		", p_mode => 'shared'")
	two.runOut(t, conn)
	grant(t, conn, "readers", "r3", "1 h", ", p_mode => 'shared'").release(t, conn)
	one.release(t, conn)
	of := grant(t, conn, "places", "p1", "1 h", ", p_mode => 'limit', p_capacity => 2")
	execute(t, conn, `SELECT pglock.break_lock('places', 'stuck', 'me', $1)`, of.token)
}

func column(t *testing.T, conn *pgx.Conn, sql string) []string {
	t.Helper()
	rows := must.Get(conn.Query(t.Context(), sql))(t)
	all := must.Get(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	return all
}

func TestAtLevelAllEveryTenureIsInTheHistoryOnce(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
	everyEnd(t, conn)
	for name, want := range map[string][]string{
		"a": {"release of one exclusive/0 number 1", "takeover of two exclusive/0 number 2 by three",
			"handover of three exclusive/0 number 3 by four",
			"break of four exclusive/0 number 4 by me", "release of five exclusive/0 number 5",
			"release of six exclusive/0 number 6"},
		"readers": {"takeover of r2 shared/2 number 1 by r3", "release of r3 shared/2 number 2",
			"release of r1 shared/1 number 1"},
		"places": {"break of p1 limit/1 number 1 by me"},
		"gone":   {"expired of last exclusive/0 number 1"},
	} {
		if got := events(t, admin, name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if v, err := admin.Verify(t.Context(), ""); err != nil || v.ViolationCount+v.GapCount+v.ClockCount != 0 ||
		v.Tenures != 11 || v.Locks != 4 {
		t.Errorf("%+v, %v; want 11 tenures of 4 locks, and nothing wrong", v, err)
	}
}

func TestAtTheDefaultTheHistoryHasTheLossesAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	everyEnd(t, conn)
	for name, want := range map[string][]string{
		"a":       {"takeover of two exclusive/0 number 2 by three", "break of four exclusive/0 number 4 by me"},
		"readers": {"takeover of r2 shared/2 number 1 by r3"},
		"places":  {"break of p1 limit/1 number 1 by me"},
		"gone":    {"expired of last exclusive/0 number 1"},
	} {
		if got := events(t, admin, name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	v, err := admin.Verify(t.Context(), "")
	if err != nil || v.ViolationCount+v.ClockCount+v.MissingUnknown != 0 || v.Missing != 6 {
		t.Errorf("%+v, %v; want 6 missing tenures, for the level", v, err)
	}
	for _, g := range v.Gaps {
		if g.Cause != lockadmin.GapLevel {
			t.Errorf("%+v, want it caused by the level", g)
		}
	}
}

// A lease that ran out had ended before anybody noticed.
func TestTheTenureOfALeaseThatRanOutEndsWithItsExpiry(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	for _, name := range []string{"taken", "pruned"} {
		grant(t, conn, name, "late", "1 h", "")
	}
	execute(t, conn,
		`UPDATE pglock.locks SET acquired_at = '2026-01-01 10:00 UTC', expires_at = '2026-01-01 11:00 UTC'`)
	grant(t, conn, "taken", "next", "1 h", "")
	execute(t, conn, `SELECT pglock.prune_locks('1 d')`)
	want := time.Date(2026, 1, 1, 11, 0, 0, 0, time.UTC)
	for _, name := range []string{"taken", "pruned"} {
		if all, err := lists.All(admin.History(t.Context(), lockadmin.HistoryQuery{Lock: name})); err != nil ||
			len(all) != 1 ||
			!all[0].EndedAt.Equal(want) || !all[0].GrantedAt.Equal(want.Add(-time.Hour)) {
			t.Errorf("%s: %+v, %v; want the end %v", name, all, err, want)
		}
	}
}

// A client whose lease expired and was pruned learns how it ended.
func TestALeaseThatExpiredAndWasPrunedIsExpired(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	l := grant(t, conn, "gone", "late", "1 h", "")
	l.runOut(t, conn)
	execute(t, conn, `SELECT pglock.prune_locks('0 s')`)
	for range 2 { // also when somebody has the lock again
		if got := column(t, conn,
			fmt.Sprintf(`SELECT outcome FROM pglock.renew_leases('{gone}', '{%d}', '{%s}', '{0}')`, l.token,
				l.grantID)); !slices.Equal(got, []string{"expired"}) {
			t.Errorf("%q, want expired", got)
		}
		grant(t, conn, "gone", "next", "1 h", "").release(t, conn)
	}
}

func TestHistoryIsChosenByKindTimeAndPlace(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	execute(t, conn, `INSERT INTO pglock.events (at, kind, lock_name, token)
		SELECT timestamptz '2026-01-01 10:00 UTC' + n * interval '1 min', (ARRAY['takeover', 'break', 'release'])[1 + n % 3], (ARRAY['a', 'b'])[1 + n % 2], n FROM generate_series(1, 12) n`)
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 10, minute, 0, 0, time.UTC) }
	for _, tc := range []struct {
		q    lockadmin.HistoryQuery
		want string
	}{
		{lockadmin.HistoryQuery{}, "12 11 10 9 8 7 6 5 4 3 2 1"},
		{lockadmin.HistoryQuery{Lock: "a"}, "12 10 8 6 4 2"},
		{lockadmin.HistoryQuery{Lock: "c"}, ""},
		{lockadmin.HistoryQuery{Kinds: []lockadmin.EventKind{lockadmin.EventBreak}}, "10 7 4 1"},
		{lockadmin.HistoryQuery{Lock: "b", Kinds: []lockadmin.EventKind{lockadmin.EventBreak, lockadmin.EventTakeover}},
			"9 7 3 1"},
		{lockadmin.HistoryQuery{Since: at(10)}, "12 11 10"},
		{lockadmin.HistoryQuery{Until: at(3)}, "2 1"},
		{lockadmin.HistoryQuery{Lock: "a", Since: at(4), Until: at(10)}, "8 6 4"},
		{lockadmin.HistoryQuery{Limit: 2}, "12 11"},
		{lockadmin.HistoryQuery{Lock: "a", Before: 9, Limit: 2}, "8 6"},
	} {
		for _, size := range []int{1, 2, 1000} {
			tc.q.PageSize = size
			got := strings.Join(texts(t,
				admin.History(t.Context(), tc.q),
				func(e lockadmin.HistoryEntry) string {
					return fmt.Sprint(e.ID)
				}), " ")
			if got != tc.want {
				t.Errorf("%+v: %q, want %q", tc.q, got, tc.want)
			}
		}
	}
	for _, list := range []error{
		second(lists.All(admin.History(t.Context(), lockadmin.HistoryQuery{Kinds: []lockadmin.EventKind{"nothing"}}))),
		second(lists.All(admin.History(t.Context(), lockadmin.HistoryQuery{Before: -1}))),
	} {
		if !errors.Is(list, pglock.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", list)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// late is a context that ends some time after its deadline, as on a busy machine.
type late struct {
	context.Context
	deadline time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

func TestATableInUseIsNamedIfTheServerEndsTheLastTryBeforeTheCaller(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	slow, err := db.Conn(t).Begin(t.Context())
	if err == nil {
		_, err = slow.Exec(t.Context(), `LOCK TABLE pglock.locks IN ROW EXCLUSIVE MODE`)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []time.Duration{530, 550, 570, 590} { // of which some end in the second try
		err = nil
		for try := 0; try < 3 && !errors.Is(err, lockadmin.ErrInUse); try++ { // the machine may stand still
			deadline := time.Now().Add(limit * time.Millisecond)
			ctx, cancel := context.WithDeadline(t.Context(), deadline.Add(80*time.Millisecond))
			err = second(admin.SetHistory(late{ctx, deadline}, lockadmin.HistoryChange{Level: lockadmin.HistoryAll}))
			cancel()
		}
		if !errors.Is(err, lockadmin.ErrInUse) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want ErrInUse", err)
		}
	}
	must.Do(t, slow.Rollback(t.Context()))
}

func TestTheLevelIsChangedWithoutHoldingUpOthers(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	if s, err := admin.HistorySettings(t.Context()); err != nil ||
		s != (lockadmin.HistorySettings{Level: lockadmin.HistoryLosses, Keep: lockadmin.DefaultKeep}) {
		t.Fatalf("%+v, %v; want the defaults", s, err)
	}
	slow, err := conn.Begin(t.Context()) // somebody who has written to the table, and does not end
	if err != nil {
		t.Fatal(err)
	}
	must.Get(slow.Exec(t.Context(), `LOCK TABLE pglock.locks IN ROW EXCLUSIVE MODE`))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	changed := make(chan error, 1)
	go func() { changed <- second(admin.SetHistory(ctx, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})) }()
	other := db.Conn(t)
	grants := 0
	for longest := time.Duration(0); ; {
		select {
		case err := <-changed:
			if !errors.Is(err, lockadmin.ErrInUse) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want ErrInUse", err)
			}
			// Each try holds grants up for a tenth of a second; the rest is for a busy machine.
			if longest > 4*time.Second || grants < 5 {
				t.Errorf("%d grants in six seconds, and one of them waited for %v", grants, longest)
			}
		default:
			began := time.Now()
			grant(t, other, "quick", "quick", "1 h", "").release(t, other)
			longest, grants = max(longest, time.Since(began)), grants+1
			time.Sleep(50 * time.Millisecond) // leaves the machine to what is measured
			continue
		}
		break
	}
	if s, err := admin.HistorySettings(t.Context()); err != nil || s.Level != lockadmin.HistoryLosses {
		t.Errorf("%+v, %v; want no change", s, err)
	}
	must.Do(t, slow.Rollback(t.Context()))
	before := time.Now().Add(-time.Minute)
	s := setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll, Keep: 48 * time.Hour, Actor: "me"})
	if s.Level != lockadmin.HistoryAll || s.Keep != 48*time.Hour || s.Since.Before(before) || !s.Pruned.IsZero() {
		t.Errorf("%+v, want level all since now, kept for two days", s)
	}
	if again := setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll}); again != s {
		t.Errorf("%+v, want %+v as before", again, s)
	}
	s = setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryLosses})
	if s.Level != lockadmin.HistoryLosses ||
		!s.Since.IsZero() || s.Keep != 48*time.Hour {
		t.Errorf("%+v, want level losses", s)
	}
	got := texts(t,
		admin.History(t.Context(), lockadmin.HistoryQuery{Kinds: []lockadmin.EventKind{lockadmin.EventLevel}}),
		func(e lockadmin.HistoryEntry) string {
			return e.Reason
		})
	if want := []string{"level losses, kept for 2 days", "level all, kept for 2 days"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, c := range []lockadmin.HistoryChange{{Level: "most"}, {Keep: time.Hour}, {Keep: -1},
		{Keep: lockadmin.MaxKeep + 1}, {Actor: "\x00"}} {
		if _, err := admin.SetHistory(t.Context(), c); !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", err)
		}
	}
}

// A lock does not hang because of its history.
func TestAReleaseGoesOnWhenTheHistoryCannotBeWritten(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
	grant(t, conn, "a", "one", "1 h", "").release(t, conn)
	execute(t, conn, `ALTER TABLE pglock.events ADD CONSTRAINT full_up CHECK (kind <> 'release') NOT VALID`)
	grant(t, conn, "a", "two", "1 h", "").release(t, conn)
	execute(t, conn, `ALTER TABLE pglock.events DROP CONSTRAINT full_up`)
	grant(t, conn, "a", "three", "1 h", "").release(t, conn)
	locked := must.Get(db.Conn(t).Begin(t.Context()))(t)
	must.Get(locked.Exec(t.Context(), `LOCK TABLE pglock.events`))(t)
	grant(t, conn, "a", "four", "1 h", "").release(t, conn)
	must.Do(t, locked.Rollback(t.Context()))
	if got, want := events(t, admin, "a"), []string{"release of one exclusive/0 number 1",
		"release of three exclusive/0 number 3"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	v, err := admin.Verify(t.Context(), "a")
	if err != nil || v.ViolationCount != 0 || v.MissingUnknown != 2 || len(v.Gaps) != 2 ||
		v.Gaps[0].Cause != lockadmin.GapUnknown || v.Gaps[0].Missing != 1 || v.Gaps[1].Before != 0 {
		t.Errorf("%+v, %v; want two gaps that nothing explains", v, err)
	}
}

func TestTheHistoryIsPrunedByItsAgeInSteps(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	fill := func() {
		execute(t, conn, `TRUNCATE pglock.events`)
		execute(t, conn, `INSERT INTO pglock.events (at, kind, lock_name, token)
			SELECT clock_timestamp() - (n > 2500)::int * interval '1 d' - (n <= 2500)::int * interval '3 d', 'takeover', 'a', n FROM generate_series(1, 3000) n`)
	}
	fill()
	if p, err := admin.Prune(t.Context(), lockadmin.PruneOptions{}); err != nil || p.Events != 0 ||
		p.EventAge != lockadmin.DefaultKeep {
		t.Errorf("%+v, %v; want nothing pruned by the default", p, err)
	}
	setHistory(t, admin, lockadmin.HistoryChange{Keep: 48 * time.Hour})
	var removed, next int64
	if err := conn.QueryRow(t.Context(),
		`SELECT removed, next FROM pglock.prune_history(p_limit => 1000)`).Scan(&removed, &next); err != nil ||
		removed != 1000 || next == 0 {
		t.Errorf("a step removed %d, %d is next, %v", removed, next, err)
	}
	p, err := admin.Prune(t.Context(), lockadmin.PruneOptions{})
	if err != nil || p.Events != 1500 || p.EventAge != 48*time.Hour {
		t.Errorf("%+v, %v; want 1500 more pruned", p, err)
	}
	if s, err := admin.HistorySettings(t.Context()); err != nil || s.Pruned.IsZero() ||
		time.Since(s.Pruned) < 47*time.Hour {
		t.Errorf("%+v, %v; want the time up to which it was pruned", s, err)
	}
	fill() // every client prunes too
	if got := column(t, conn, `SELECT pglock.sweep()::text`); !slices.Equal(got, []string{"1000"}) {
		t.Errorf("a sweep removed %q", got)
	}
	all := lockadmin.PruneOptions{EventAge: new(time.Duration(0))}
	if p, err := admin.Prune(t.Context(), all); err != nil || p.Events+p.Leftovers != 2000 {
		t.Errorf("%+v, %v; want the rest pruned", p, err)
	}
}

func TestLocksTellTheirGrantsAndTheirSlowestRenewal(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	info := func() pglock.LockInfo {
		t.Helper()
		i := must.Get(admin.Get(t.Context(), "a"))(t)
		return i
	}
	var l lease
	for n := range int64(3) {
		l = grant(t, conn, "a", "h", "1 h", "")
		if i := info(); i.Grants != n+1 || i.SlowestRenewal != 0 {
			t.Errorf("%+v, want grant %d without a renewal", i, n+1)
		}
		renew := func(gap string, want time.Duration) {
			t.Helper()
			execute(t, conn, `UPDATE pglock.locks SET renewed_at = clock_timestamp() - $1::text::interval`, gap)
			execute(t, conn,
				`SELECT * FROM pglock.renew_leases('{a}', ARRAY[$1::bigint], ARRAY[$2::text::uuid], '{0}')`, l.token,
				l.grantID)
			if i := info(); i.SlowestRenewal < want || i.SlowestRenewal > want+5*time.Second {
				t.Errorf("%v after a gap of %s, want %v", i.SlowestRenewal, gap, want)
			}
		}
		renew("10 s", 10*time.Second)
		renew("40 s", 40*time.Second)
		renew("5 s", 40*time.Second)
		if n < 2 {
			l.release(t, conn)
		}
	}
	l.runOut(t, conn)
	grant(t, conn, "a", "next", "1 h", "")
	if i := info(); i.Grants != 4 || i.SlowestRenewal != 0 {
		t.Errorf("%+v, want the fourth grant after a takeover", i)
	}
}
