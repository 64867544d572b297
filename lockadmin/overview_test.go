package lockadmin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// names are the locks of an overview, with their words.
func illOf(t *testing.T, admin *lockadmin.Admin, limit int) (string, lockadmin.Overview) {
	t.Helper()
	all := must.Get(admin.Overview(t.Context(), limit))(t)
	var words []string
	for _, s := range all.Locks {
		words = append(words, fmt.Sprintf("%s %s", s.Lock, s.Kind))
	}
	return strings.Join(words, ", "), all
}

// manyFree makes so many locks that nobody holds.
func manyFree(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	execute(t, conn,
		`INSERT INTO pglock.locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at, ended_at)
		SELECT 'a' || n, n, gen_random_uuid(), gen_random_uuid(), 'former', '1 h', now(), now(), '-infinity', now() FROM generate_series(1, $1::int) n`, n)
}

// Tickets of the dead make nobody busy: neither those that have been passed over nor those that nobody has come to yet.
func TestTheOverviewCountsNoQueueOfTheDead(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	for _, name := range []string{"broken", "left"} {
		for _, wait := range []bool{false, true} {
			execute(t, conn, `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'holder', '1 h', p_wait => $2)`,
				name, wait)
		}
	}
	if _, all := illOf(t, admin, 20); all.Busy != 2 {
		t.Errorf("%d are busy while the waiters live", all.Busy)
	}
	execute(t, conn, `UPDATE pglock.sessions SET alive_until = clock_timestamp()`)
	for _, wait := range []bool{false, true} {
		execute(t, conn, `SELECT pglock.acquire_lease('living', gen_random_uuid(), gen_random_uuid(), 'holder', '1 h', p_wait => $1)`,
			wait)
	}
	execute(t, conn, `SELECT pglock.break_lock('broken', 'its holder hangs', 'operator')`)
	if names, all := illOf(t, admin, 20); all.Busy != 1 {
		t.Errorf("%d are busy when the waiters of all but one are dead: %s", all.Busy, names)
	}
}

// Among more than a thousand locks the overview finds those that are not well without reading them all.
func TestTheOverviewFindsWhoIsIllAmongManyLocks(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	acquire := func(name, holder string, key uuid.UUID, wait bool) {
		t.Helper()
		execute(t, conn,
			`SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, $3, '1 h', p_wait => $4, p_session_ttl => '1 h')`,
			name, key.String(), holder, wait)
	}
	manyFree(t, conn, 2000)
	dead, named, busy, writer, broken := uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()
	for lock, key := range map[string]uuid.UUID{"dead": dead, "named": named, "busy": busy, "fenced": writer,
		"first": writer, "row": writer, "broken": broken, "well": writer} {
		acquire(lock, "holder of "+lock, key, false)
	}
	acquire("dead", "waiter", uuid.New(), true)
	acquire("busy", "waiter", uuid.New(), true)
	acquire("circle", "holder of circle", uuid.New(), false)
	sign := func(key uuid.UUID, names ...string) {
		t.Helper()
		execute(t, conn, `SELECT pglock.mark_connection($1::text::uuid, 0, 'holder', 'v1', '1 h', $2)`, key.String(),
			names)
	}
	sign(dead)
	sign(named, "named", "gone", "busy")
	sign(busy, "busy")
	sign(writer, "fenced", "first", "row", "well")
	execute(t, conn, `SELECT pglock.fence(l.name, l.token, l.grant_id) FROM pglock.locks l WHERE l.name = 'fenced'`)
	if got, all := illOf(t, admin, 20); got != "" || all.Busy != 2 || all.Known <= 1000 || all.More != 0 || all.Partly {
		t.Errorf("all are well, and the overview has %s: %+v", got, all)
	}

	execute(t, conn,
		`UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 min' WHERE name IN ('dead', 'named', 'busy')`)
	execute(t, conn, `UPDATE pglock.sessions SET seen_at = clock_timestamp() - interval '20 s' WHERE session_id IN (
		SELECT session_id FROM pglock.locks WHERE name IN ('dead', 'named'))`)
	if got, _ := illOf(t, admin, 20); got != "dead silent, named silent" {
		t.Errorf("two holders give no sign of life, and the overview has %s", got)
	}
	execute(t, conn, `SELECT pglock.break_lock('broken', 'alice', 'why not')`)
	open := func(sql string) {
		t.Helper()
		tx, err := db.Conn(t).Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), sql)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	}
	open(`SELECT pglock.fence(l.name, l.token, l.grant_id, p_allow_same_token => true) FROM pglock.locks l WHERE l.name = 'fenced'`)
	open(`SELECT pglock.fence(l.name, l.token, l.grant_id) FROM pglock.locks l WHERE l.name = 'first'`)
	open(`SELECT FROM pglock.locks WHERE name = 'row' FOR UPDATE`)
	open(`SELECT FROM pglock.locks WHERE name = 'a7' FOR UPDATE`) // nobody holds it, and nobody waits
	pgtest.Eventually(t, "the open transactions to be found", func() bool {
		got, all := illOf(t, admin, 20)
		return len(all.Locks) == 7 && strings.Contains(got, "a7 row") && all.Locks[0].Lock == "dead" &&
			all.Locks[0].Severity == lockadmin.SeverityStuck &&
			all.Busy == 1 &&
			strings.Contains(got, "named silent") && strings.Contains(got, "broken broken") &&
			strings.Contains(got, "fenced idle") &&
			strings.Contains(got, "first idle") && strings.Contains(got, "row row")
	})
	if got, all := illOf(t, admin, 1); got != "dead silent" || all.More < 6 {
		t.Errorf("the worst one is %s, with %d more; want that somebody waits for, and 6", got, all.More)
	}
	for _, limit := range []int{0, 1001} {
		var refused *pglock.ArgumentError
		if _, err := admin.Overview(t.Context(), limit); !errors.As(err, &refused) || refused.Field != "limit" {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// A lock whose holders lose it again and again is well at every look. The overview shows it nevertheless, and why says
// the same of it, for ten minutes after the third loss within an hour.
func TestTheOverviewShowsALockThatIsLostAgainAndAgain(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	manyFree(t, conn, 1100)
	granted := func(name string) {
		t.Helper()
		execute(t, conn, `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'holder', '1 h')`, name)
	}
	granted("flaps")
	granted("well")
	for n, want := range []string{"", "", "flaps flapping"} {
		execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'flaps'`)
		granted("flaps")
		if got, _ := illOf(t, admin, 20); got != want {
			t.Errorf("after %d losses the overview has %q, want %q", n+1, got, want)
		}
	}
	for range 2 { // a program that crashes loses all its places at once
		execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'places'`)
		for range 3 {
			execute(t, conn, `SELECT pglock.acquire_lease('places', gen_random_uuid(), gen_random_uuid(), 'holder', '1 h',
				p_mode => 'limit', p_capacity => 3)`)
		}
	}
	if got, _ := illOf(t, admin, 20); got != "flaps flapping" {
		t.Errorf("after one crash with three places the overview has %q", got)
	}
	s, err := admin.Summaries(t.Context(), []pglock.LockInfo{{Name: "flaps"}})
	if err != nil || len(s) != 1 || s[0].Severity != lockadmin.SeverityWarning || s[0].Next.Command != "history flaps" {
		t.Errorf("the list says %+v, %v", s, err)
	}
	execute(t, conn, `UPDATE pglock.events SET at = at - interval '11 min'`)
	if got, _ := illOf(t, admin, 20); got != "" {
		t.Errorf("eleven minutes after the last loss the overview has %q", got)
	}
}

// Locks that are well, and notes, do not take the lines from locks that are not well.
func TestTheOverviewFillsItsLinesWithWhoIsIll(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	acquire := func(name string, key uuid.UUID, wait bool) {
		t.Helper()
		execute(t, conn,
			`SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, 'holder', '1 h', p_wait => $3,
			p_session_ttl => '1 h')`, name, key.String(), wait)
	}
	acquire("base", uuid.New(), false)
	for n := range 25 { // nested locks: each holder waits for another one, and somebody for it
		key := uuid.New()
		acquire(fmt.Sprint("nest ", n), key, false)
		acquire(fmt.Sprint("nest ", n), uuid.New(), true)
		acquire("base", key, true)
	}
	for _, name := range []string{"noted", "pruned"} {
		acquire(name, uuid.New(), false)
		execute(t, conn, `SELECT pglock.break_lock($1, 'alice', 'why not')`, name)
	}
	execute(t, conn, `DELETE FROM pglock.locks WHERE name = 'pruned'`)
	var news string
	must.Do(t, conn.QueryRow(t.Context(), `SELECT string_agg(n, ', ') FROM pglock.recent_news() n`).Scan(&news))
	if news != "noted" {
		t.Errorf("there are news of %s, want of noted", news)
	}
	for _, name := range []string{"victim", "other"} {
		acquire(name, uuid.New(), false)
		execute(t, conn, `UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 min' WHERE name = $1`,
			name)
	}
	acquire("victim", uuid.New(), true)
	for limit, want := range map[int]string{1: "victim silent", 2: "victim silent, other silent",
		20: "victim silent, other silent, noted broken"} {
		if got, all := illOf(t, admin, limit); got != want {
			t.Errorf("with %d lines: %s, and %d more; want %s", limit, got, all.More, want)
		}
	}
}

// Whoever waits to lock a whole table keeps everybody from all locks, and loses least. Whom it waits for is named, too.
func TestTheOverviewSaysWhoKeepsEverybodyFromTheLocks(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	reader, ddl := db.Conn(t), db.Conn(t)
	execute(t, reader, "BEGIN")
	execute(t, ddl, "BEGIN")
	execute(t, reader, "SELECT count(*) FROM pglock.locks")
	waits := pgtest.Group(t)
	ctx, cancel := context.WithCancel(t.Context())
	waits.Go(func() { _, _ = ddl.Exec(ctx, "LOCK TABLE pglock.locks") })
	defer waits.Wait()
	defer cancel()
	pgtest.Eventually(t, "the one that waits for the table to have waited", func() bool {
		got, all := illOf(t, admin, 20)
		return got == " table" && all.Locks[0].Severity == lockadmin.SeverityStuck && all.Locks[0].Who != "" &&
			all.Locks[0].Next.Command == fmt.Sprintf("SELECT pg_terminate_backend(%d)", ddl.PgConn().PID())
	})
	e, err := admin.Explain(t.Context(), "report")
	if err != nil || !strings.Contains(e.Verdicts[0].Text, "waits for a lock of the whole table locks") ||
		!strings.Contains(e.Verdicts[0].Text, fmt.Sprintf("for process %d", reader.PgConn().PID())) ||
		e.Verdicts[0].Steps[1].Command != fmt.Sprintf("SELECT pg_terminate_backend(%d)", reader.PgConn().PID()) {
		t.Errorf("%+v, %v", e.Verdicts, err)
	}
}

// Of no more than a thousand locks the overview finds all.
func TestTheOverviewOfFewLocksFindsADeadHolderThatNeverGaveASign(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	execute(t, conn,
		`SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-1/reporter[4711]', '1 h')`)
	if got, all := illOf(t, admin, 20); got != "" || all.Held != 1 || all.Known != 1 || all.Well != 1 {
		t.Errorf("of a lease that is young: %s, %+v", got, all)
	}
	execute(t, conn, `UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 min'`)
	manyFree(t, conn, 2)
	got, all := illOf(t, admin, 20)
	if got != "report silent" || all.Known != 3 || all.Well != 2 || all.Locks[0].Who != "app-1/reporter[4711]" ||
		all.Locks[0].Next != (lockadmin.Step{}) ||
		all.At.Sub(all.Locks[0].Since).Round(time.Minute) != time.Minute {
		t.Errorf("%s: %+v", got, all.Locks)
	}
}

// Summaries looks closely at fifty locks at most, and says of which it has not.
func TestSummariesSaysWhatItHasNotLookedAt(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	execute(t, conn,
		`SELECT pglock.acquire_lease('lock ' || n, gen_random_uuid(), gen_random_uuid(), 'holder', '1 h') FROM generate_series(1, 60) n`)
	execute(t, conn,
		`UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 min' WHERE name <> 'lock 7'`)
	var leases []pglock.LockInfo
	for l, err := range admin.Locks(t.Context(), lockadmin.LocksQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	all := must.Get(admin.Summaries(t.Context(), leases))(t)
	count := map[string]int{}
	for i, s := range all {
		if s.Lock != leases[i].Name {
			t.Errorf("the summary of %q is about %q", leases[i].Name, s.Lock)
		}
		count[fmt.Sprintf("%s %t", s.Severity, s.Hidden)]++
	}
	if got := fmt.Sprint(count); got != "map[ true:9 ok false:1 warning false:50]" {
		t.Error(got)
	}
}

// slowLine lets time pass on the server before each statement.
type slowLine time.Duration

func (d slowLine) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	const pause = "SELECT pg_catalog.pg_sleep($1)"
	if q.SQL != pause {
		_, _ = conn.Exec(ctx, pause, time.Duration(d).Seconds())
	}
	return ctx
}

func (d slowLine) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Over a slow line there is no time to look closely at all that may not be well: what was found is told all the same.
func TestASlowLineLeavesTimeToTellWhatWasFound(t *testing.T) {
	t.Parallel()
	const many = 50
	db := pgtest.Database(t)
	far := db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = slowLine(40 * time.Millisecond) })
	admin := newAdmin(t, far)
	conn := db.Conn(t)
	execute(t, conn, `SELECT pglock.acquire_lease('lock ' || n, gen_random_uuid(), gen_random_uuid(), 'holder', '1 h')
		FROM generate_series(1, $1::int) n`, many)
	execute(t, conn, `UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 min'`)
	var leases []pglock.LockInfo
	for n := range many {
		leases = append(leases, pglock.LockInfo{Name: fmt.Sprint("lock ", n+1), Held: true})
	}
	limited := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second) // a stall takes less than half
		t.Cleanup(cancel)
		return ctx
	}
	all := must.Get(admin.Overview(limited(), many))(t)
	if len(all.Locks) == 0 || all.More == 0 || len(all.Locks)+all.More != many || all.Well != 0 {
		t.Errorf("the overview has %d locks, %d more, %d well; want some and the rest of %d, and none", len(all.Locks),
			all.More, all.Well, many)
	}
	looked := 0
	for _, s := range must.Get(admin.Summaries(limited(), leases))(t) {
		if !s.Hidden {
			looked++
		}
		if s.Hidden != (s.Severity == "") || !s.Hidden && s.Kind != "silent" {
			t.Errorf("%+v", s)
		}
	}
	if looked == 0 || looked == many {
		t.Errorf("the summaries have looked at %d locks, want some of %d", looked, many)
	}
}

// A sign of life names at most twenty locks, and the last one that named any counts.
func TestASignOfLifeNamesFewLocks(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	key := uuid.NewString()
	sign := func(names []string) error {
		_, err := conn.Exec(t.Context(), `SELECT pglock.mark_connection($1::text::uuid, 0, 'holder', 'v1', '1 h', $2)`,
			key, names)
		return err
	}
	for _, names := range [][]string{make([]string, 21), {strings.Repeat("x", 10241)}} {
		if err := sign(names); err == nil ||
			!strings.Contains(err.Error(), "it must be at most 20 names of 512 bytes") {
			t.Errorf("%d names: %v", len(names), err)
		}
	}
	for _, names := range [][]string{{"a", "b"}, nil} {
		must.Do(t, sign(names))
		row := must.Get(conn.Query(t.Context(), `SELECT unnest(names) FROM pglock.sessions`))(t)
		got, err := pgx.CollectRows(row, pgx.RowTo[string])
		if err != nil || fmt.Sprint(got) != "[a b]" {
			t.Errorf("after %v the session names %v, %v", names, got, err)
		}
	}
}

// A broken guard is found, also of a resource whose name no lock has.
func TestTheOverviewFindsABrokenGuard(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	execute(t, conn, "CREATE TABLE public.accounts (id bigint PRIMARY KEY)")
	execute(t, conn, "SELECT pglock.guard_table('public.accounts', p_key => 'id')")
	if got, _ := illOf(t, admin, 20); got != "" {
		t.Errorf("the guard is whole, and the overview has %s", got)
	}
	execute(t, conn, "ALTER TABLE public.accounts DISABLE TRIGGER pglock_guard")
	if got, all := illOf(t, admin, 20); got != "accounts guard" || !strings.Contains(all.Locks[0].Who, "accounts") {
		t.Errorf("the guard is broken, and the overview has %s: %+v", got, all)
	}
}
