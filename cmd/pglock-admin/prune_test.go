package main

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/act"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// patience bounds every wait for something that happens at once unless the code is broken.
const patience = time.Minute

// ask reads one value as the owner of the schema.
func ask[T any](tb testing.TB, db *pgtest.DB, sql string, args ...any) (v T) {
	tb.Helper()
	db.Look(tb, func(conn *pgx.Conn) {
		if err := conn.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
			tb.Fatalf("%s: %v", sql, err)
		}
	})
	return v
}

// idleSince takes each lock once and makes it look as if it had been released that long ago.
func idleSince(tb testing.TB, db *pgtest.DB, ago string, names ...string) {
	tb.Helper()
	for _, name := range names {
		must.Do(tb, hold(tb, db, "worker", name).Release(tb.Context()))
		execute(tb, db, `UPDATE pglock.locks SET ended_at = clock_timestamp() - $2::text::interval WHERE name = $1`,
			name, ago)
	}
}

const deadWaiters = `INSERT INTO pglock.waiters (name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
	SELECT $1, nextval('pglock.ticket_seq'), 'exclusive', gen_random_uuid(), gen_random_uuid(), false, 'gone', '1 s', clock_timestamp() - interval '1 hour'
	FROM generate_series(1, $2)`

func TestPruneRemovesWhatIsIdleAndKeepsTheRest(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "idle", "idle too", "only the dead wait for it")
	idleSince(t, db, "23 h", "recent")
	held := hold(t, db, "worker", "held")
	execute(t, db, `UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 month' WHERE name = 'held'`)
	must.Do(t, hold(t, db, "reader", "shared", pglock.WithShared()).Release(t.Context()))
	hold(t, db, "reader", "shared", pglock.WithShared()) // its head has been free for ever
	execute(t, db,
		`UPDATE pglock.locks SET ended_at = clock_timestamp() - interval '1 month' WHERE name = 'shared' AND slot = 0`)
	execute(t, db, deadWaiters, "only the dead wait for it", 2)
	execute(t, db, `INSERT INTO pglock.events (at, kind, lock_name, token)
		SELECT clock_timestamp() - d * interval '1 day', 'break', 'x', 1 FROM unnest(ARRAY[1, 89, 91, 1000]) d`)

	view := decode[act.PruneView](t, in(t, db.URL(), "prune", "-o", "json").want(t, cli.ExitOK).stdout)
	want := act.PruneView{Locks: 3, Leftovers: 2, Events: 2, Idle: (24 * time.Hour).Milliseconds(),
		Older: (90 * 24 * time.Hour).Milliseconds()}
	if view != want {
		t.Errorf("%+v, want %+v", view, want)
	}
	if left := ask[string](t, db,
		`SELECT string_agg(DISTINCT name, ',' ORDER BY name) FROM pglock.locks`); left != "held,recent,shared" {
		t.Errorf("the locks that are left: %s", left)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM pglock.events`); n != 2 {
		t.Errorf("%d events are left", n)
	}
	if _, err := held.Check(t.Context()); err != nil {
		t.Errorf("the held lease: %v", err)
	}

	in(t, db.URL(), "prune", "--idle", "22h", "--events", "48h").want(t, cli.ExitOK, "locks      1, free for longer "+
		"than 22h", "events     1, older than 2d", "leftovers  0")
	in(t, db.URL(), "prune").want(t, cli.ExitOK, "locks      0, free for longer than 1d")
}

// Only sweep forgets these, and it may be that nothing but prune calls it.
func TestPruneRemovesEveryKindOfLeftover(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, deadWaiters, "a", 1)
	const old = ` - d * interval '1 minute' FROM unnest(ARRAY[`
	for _, sql := range []string{ // two of each that are old enough, and one that is not
		`INSERT INTO pglock.sessions SELECT gen_random_uuid(), 'gone', clock_timestamp() - d * interval '1 minute', clock_timestamp()` + old + `0.1, 2, 1000]) d`,
		`INSERT INTO pglock.spent_grants SELECT gen_random_uuid(), clock_timestamp()` + old + `50, 70, 1000]) d`,
		`INSERT INTO pglock.receipts SELECT gen_random_uuid(), gen_random_uuid(), clock_timestamp()` + old +
			`10000, 10100, 20000]) d`,
		`INSERT INTO pglock.done_keys SELECT 'key ' || d, 'a', 1, clock_timestamp(), clock_timestamp()` + old +
			`1430, 1450, 2000]) d`,
		`INSERT INTO pglock.done_keys SELECT 'for ever', 'a', 1, '-infinity'`,
	} {
		execute(t, db, sql)
	}
	in(t, db.URL(), "prune").want(t, cli.ExitOK, "leftovers  9, of dead sessions, old requests and work done once\n")
	for table, want := range map[string]int{"waiters": 0, "sessions": 1, "spent_grants": 1, "receipts": 1,
		"done_keys": 2} {
		if n := ask[int](t, db, "SELECT count(*) FROM pglock."+table); n != want {
			t.Errorf("%d %s are left, want %d", n, table, want)
		}
	}
}

// As text, PostgreSQL 14 reads neither the defaults in microseconds nor the longest in seconds.
func TestPruneTakesDurationsOfEveryLengthOnEveryServer(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "idle")
	in(t, db.URL(), "prune", "--idle", "106000d", "--events", "106000d").want(t, cli.ExitOK, "locks      0,")
	in(t, db.URL(), "prune", "--idle", "25h10m500us").want(t, cli.ExitOK, "locks      0,")
	in(t, db.URL(), "prune").want(t, cli.ExitOK, "locks      1, free for longer than 1d", "events     0, older than "+
		"90d")
}

func TestI21_PruneLeavesFencesAndTokensGoOn(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker", "a")
	must.Do(t, fencedWrite(t, db, lease, func(pgx.Tx) error { return nil }))
	must.Do(t, lease.Release(t.Context()))
	if view := decode[act.PruneView](t, in(t, db.URL(), "prune", "--idle", "0s", "-o", "json").want(t,
		cli.ExitOK).stdout); view.Locks != 1 {
		t.Fatalf("%+v", view)
	}
	if last := ask[int64](t, db, `SELECT last_token FROM pglock.fences`); last != int64(lease.Token()) {
		t.Errorf("I21: the fence remembers token %d, not %d", last, lease.Token())
	}
	if next := hold(t, db, "worker", "a"); next.Token() <= lease.Token() {
		t.Errorf("I21: token %d after %d", next.Token(), lease.Token())
	}
}

// tableOfLocks are the entries of pg_locks about this database's own table: copies of one template have the same OIDs.
const tableOfLocks = `relation = 'pglock.locks'::regclass
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// A step looks for names without a lock. One that is granted before the step has the table is not removed.
func TestI21_PruneLeavesALockThatIsGrantedWhileItWaitsForTheTable(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "a")
	look := db.Conn(t)
	tx := must.Get(db.Conn(t).Begin(t.Context()))(t)
	if _, err := tx.Exec(t.Context(),
		`SELECT pglock.acquire_lease('a', gen_random_uuid(), gen_random_uuid(), 'worker', '1 hour')`); err != nil {
		t.Fatal(err)
	}
	// for a busy machine
	must.Get(tx.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = '1min'"))(t)
	done := must.Go(func() answer { return in(t, db.URL(), "prune", "--timeout", "1m") })
	waiting := 0
	pgtest.Eventually(t, "prune waits for the table", func() bool {
		if err := look.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks
			WHERE `+tableOfLocks+` AND mode = 'ShareRowExclusiveLock' AND NOT granted`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting > 0
	})
	must.Do(t, tx.Commit(t.Context()))
	if a := <-done; waiting == 0 || a.code != cli.ExitOK || !strings.Contains(a.stdout, "locks      0,") {
		t.Errorf("waiting %d: %+v", waiting, a)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp()`); n != 1 {
		t.Errorf("I21: %d leases are left, want 1", n)
	}
}

// sweep removes a thousand at a time.
func TestPruneRemovesAllDeadWaitersHoweverMany(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, deadWaiters, "a", 2345)
	if view := decode[act.PruneView](t, in(t, db.URL(), "prune", "-o", "json").want(t,
		cli.ExitOK).stdout); view.Leftovers != 2345 {
		t.Errorf("%+v", view)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM pglock.waiters`); n != 0 {
		t.Errorf("%d are left", n)
	}
}

const manyIdle = `INSERT INTO pglock.locks (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at, ended_at)
	SELECT 'job/' || to_char(i, 'FM00000'), 'worker', gen_random_uuid(), gen_random_uuid(), i, '1 s',
		clock_timestamp(), clock_timestamp(), '-infinity', clock_timestamp() - interval '2 days'
	FROM (SELECT nextval('pglock.fencing_token_seq') AS i FROM generate_series(1, $1)) i`

func TestPruneTakesTheTableForAThousandLocksAtATime(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, manyIdle, 2500)
	execute(t, db, `CREATE TABLE public.steps (xact xid8, names int)`)
	execute(t, db, `CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO public.steps SELECT pg_current_xact_id(), count(*) FROM gone; RETURN NULL; END $$`)
	execute(t, db,
		`CREATE TRIGGER note AFTER DELETE ON pglock.locks REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.note()`)
	if view := decode[act.PruneView](t, in(t, db.URL(), "prune", "--timeout", "1m", "-o", "json").want(t,
		cli.ExitOK).stdout); view.Locks != 2500 {
		t.Errorf("%+v", view)
	}
	if steps := ask[string](t, db,
		`SELECT string_agg(n::text, ' ' ORDER BY xact) FROM (SELECT xact, sum(names) AS n FROM public.steps GROUP BY xact) s`); steps != "1000 1000 500" {
		t.Errorf("in each transaction it removed %s", steps)
	}
}

func TestPruneGoesOnBehindLocksThatStay(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, manyIdle, 1500)
	execute(t, db,
		`INSERT INTO pglock.sessions VALUES ('11111111-1111-4111-8111-111111111111', 'worker', clock_timestamp() + interval '1 hour')`)
	execute(t, db,
		`INSERT INTO pglock.waiters (name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
		SELECT name, nextval('pglock.ticket_seq'), 'exclusive', gen_random_uuid(), '11111111-1111-4111-8111-111111111111', false, 'worker', '1 s', clock_timestamp()
		FROM pglock.locks WHERE name <= 'job/01100'`)
	in(t, db.URL(), "prune").want(t, cli.ExitOK, "locks      400,", "leftovers  0,")
}

func TestPruneKeepsWhatItHasRemovedWhenItsTimeIsUp(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, manyIdle, 1500)
	execute(t, db,
		`CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(120); RETURN OLD; END'`)
	execute(t, db,
		`CREATE TRIGGER slow BEFORE DELETE ON pglock.locks FOR EACH ROW WHEN (OLD.name > 'job/01000') EXECUTE FUNCTION public.slow()`)
	in(t, db.URL(), "prune", "--timeout", "8s").want(t, cli.ExitFailure, "was too short to remove everything",
		"removed 1000 locks", "which goes on")
	execute(t, db, `DROP TRIGGER slow ON pglock.locks`)
	in(t, db.URL(), "prune").want(t, cli.ExitOK, "locks      500,")
}

// signalWriter closes told at the first write.
type signalWriter struct {
	mu   sync.Mutex
	text bytes.Buffer
	told chan struct{}
	once sync.Once
}

func (w *signalWriter) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.told) })
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *signalWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// writes keeps the table of locks in use until the function that it returns is called.
func writes(tb testing.TB, db *pgtest.DB) (done func()) {
	tb.Helper()
	tx := must.Get(db.Conn(tb).Begin(tb.Context()))(tb)
	must.Get(tx.Exec(tb.Context(), `LOCK TABLE pglock.locks IN ROW EXCLUSIVE MODE`))(tb)
	return func() {
		must.Note(tb, tx.Rollback(tb.Context()))
	}
}

func TestPruneWaitsForThoseWhoWriteAndSaysSo(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "idle")
	done := writes(t, db)
	stderr := &signalWriter{told: make(chan struct{})}
	var stdout bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- obey(t.Context(), []string{"prune", "--timeout", "1m", "--database-url", db.URL()}, os.Getenv, &stdout,
			stderr)
	}()
	select {
	case <-stderr.told: // its first try has failed
	case c := <-code:
		t.Fatalf("exit code %d while the table was in use: %s%s", c, stdout.String(), stderr)
	case <-time.After(patience):
		t.Fatal("it does not say that it waits")
	}
	done()
	if c := <-code; c != cli.ExitOK || !strings.Contains(stdout.String(), "locks      1,") {
		t.Errorf("exit code %d: %s%s", c, stdout.String(), stderr)
	}
	if text := stderr.String(); !strings.Contains(text, "the table of locks is in use") ||
		strings.Count(text, "\n") != 1 {
		t.Errorf("it said %q", text)
	}
}

func TestPruneOfATableThatStaysInUseRemovesNoLockAndSaysWhoUsesIt(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "idle")
	execute(t, db, deadWaiters, "a", 3)
	defer writes(t, db)()
	a := in(t, db.URL(), "prune", "--timeout", "7s").want(t, cli.ExitFailure, "is in use",
		"removed 0 locks, 3 leftovers "+
			"and 0 events", "--timeout", `'"pglock"."locks"'::regclass`)
	if strings.Count(a.stderr, "for whoever writes to it") != 1 {
		t.Errorf("it said %q", a.stderr)
	}
	if mode := foundByHint(t, db, a.stderr); mode != "RowExclusiveLock" {
		t.Errorf("the query of the hint finds %q", mode)
	}
	p := decode[cli.Problem](t, in(t, db.URL(), "prune", "--timeout", "6s", "-o", "json").want(t,
		cli.ExitFailure).stderr)
	if p.Code != cli.ExitFailure || !strings.Contains(p.Message, "in use") {
		t.Errorf("%+v", p)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM pglock.locks`); n != 1 {
		t.Errorf("%d locks are left", n)
	}
}

// The server ends the removal by itself when the time of the command is up, also when nobody is left to cancel it.
func TestPruneBoundsItsStatementsOnTheServer(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "idle")
	execute(t, db, `CREATE TABLE public.seen AS SELECT 0 AS ms`)
	execute(t, db, `CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN UPDATE public.seen SET ms = (SELECT setting FROM pg_settings WHERE name = 'statement_timeout')::int; RETURN OLD; END $$`)
	execute(t, db, `CREATE TRIGGER see BEFORE DELETE ON pglock.locks FOR EACH ROW EXECUTE FUNCTION public.see()`)
	in(t, db.URL(), "prune", "--timeout", "30s").want(t, cli.ExitOK, "locks      1,")
	if ms := ask[int](t, db, `SELECT ms FROM public.seen`); ms < 1 || ms > 30000 {
		t.Errorf("statement_timeout is %d ms", ms)
	}
}

// A removal that takes longer than the command may is ended, and the table is free again.
func TestPruneLeavesNothingRunningOnTheServer(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "idle")
	execute(t, db,
		`CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(120); RETURN OLD; END'`)
	execute(t, db, `CREATE TRIGGER slow BEFORE DELETE ON pglock.locks FOR EACH ROW EXECUTE FUNCTION public.slow()`)
	in(t, db.URL(), "prune", "--timeout", "6s").want(t, cli.ExitFailure, "6s (--timeout)", "removed 0 locks",
		"the same command again")
	deadline, conn, held := time.Now().Add(patience), db.Conn(t), 1
	for held > 0 {
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE `+tableOfLocks+
			` AND mode = 'ShareRowExclusiveLock'`).Scan(&held); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the table is still locked")
		}
		time.Sleep(5 * time.Millisecond) // between two looks; nothing depends on its length
	}
}

func TestPruneWorksWhateverTheIsolationOfTheSession(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "idle")
	execute(t, db, `ALTER DATABASE `+pgx.Identifier{db.Name()}.Sanitize()+
		` SET default_transaction_isolation = 'serializable'`)
	in(t, db.URL(), "prune").want(t, cli.ExitOK, "locks      1,")
}

func TestPruneNeedsAnOperator(t *testing.T) {
	t.Parallel()
	for role, code := range map[string]int{"pglock_user": cli.ExitPermission, "pglock_admin": cli.ExitOK} {
		db := pgtest.Database(t)
		idleSince(t, db, "25 h", "idle")
		a := in(t, asUser(t, db, role), "prune").want(t, code)
		if n := ask[int](t, db, `SELECT count(*) FROM pglock.locks`); n == 1 != (code == cli.ExitPermission) {
			t.Errorf("as a %s: %d locks are left: %s%s", role, n, a.stdout, a.stderr)
		}
	}
}

// Everybody may sweep. A prune that is refused has not done even that, and says who may.
func TestARefusedPruneRemovesNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	idleSince(t, db, "25 h", "idle")
	execute(t, db, deadWaiters, "idle", 4)
	a := in(t, asUser(t, db, "pglock_user"), "prune").want(t, cli.ExitPermission,
		"let an administrator run: GRANT pglock_admin TO ")
	if n := ask[int](t, db, `SELECT count(*) FROM pglock.waiters`); n != 4 || strings.Contains(a.stderr, "removed") {
		t.Errorf("%d of 4 tickets are left: %s", n, a.stderr)
	}
}

func TestPruneRefusesWrongArgumentsBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	for _, line := range []struct{ args, says string }{
		{"prune extra", "extra"},
		{"prune --idle -1s", "--idle is -1s: it must not be negative"},
		{"prune --events -1s", "--events is -1s: it must not be negative"},
		{"prune --idle 1day", `--idle is "1day": it must be a duration`},
	} {
		in(t, "postgres://me@"+closedPort(t)+"/db", strings.Fields(line.args)...).want(t, cli.ExitUsage, line.says)
	}
	in(t, "postgres://me@"+closedPort(t)+"/db", "prune").want(t, cli.ExitUnreachable)
	admin(t, "prune", "--help").want(t, cli.ExitOK, "pglock_admin", "Usage:")
}
