package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/act"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/explain"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// written runs a statement by itself and gives the SQLSTATE of its refusal, or "".
func written(tb testing.TB, conn *pgx.Conn, sql string) string {
	tb.Helper()
	_, err := conn.Exec(tb.Context(), sql)
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &pgErr):
		return pgErr.Code
	}
	tb.Fatal(err)
	return ""
}

// partitioned makes the table accounts with two partitions.
func partitioned(tb testing.TB, db *pgtest.DB) {
	tb.Helper()
	execute(tb, db, "CREATE TABLE accounts (id int, balance int) PARTITION BY RANGE (id)")
	execute(tb, db, "CREATE TABLE accounts_1 PARTITION OF accounts FOR VALUES FROM (0) TO (100)")
	execute(tb, db, "CREATE TABLE accounts_2 PARTITION OF accounts FOR VALUES FROM (100) TO (200)")
}

func guards(tb testing.TB, db *pgtest.DB) []act.GuardView {
	tb.Helper()
	return decode[act.GuardsView](tb, in(tb, db.URL(), "guard", "list", "-o", "json").want(tb,
		cli.ExitOK).stdout).Guards
}

func TestGuardAddRefusesWritesWithoutTheFenceAndTellsWritersWhatToName(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "CREATE TABLE jobs (id int)")
	in(t, db.URL(), "guard", "list").want(t, cli.ExitOK, "no table is under guard\n")
	in(t, db.URL(), "guard", "list", "-o", "json").want(t, cli.ExitOK, `"guards": []`)
	in(t, db.URL(), "guard", "add", "jobs").want(t, cli.ExitOK).narrow(t).inOrder(t, "table public.jobs is guarded "+
		"from now on\n",
		"resource  jobs\n", "covers    itself alone\n",
		`fencedstore.Fence{Lease: lease, Resource: "jobs"}`, "p_resource => 'jobs'",
		"LK011")
	conn := db.Conn(t)
	if state := written(t, conn, "INSERT INTO jobs VALUES (1)"); state != "LK011" {
		t.Errorf("a write without the fence: %q", state)
	}
	err := fencedWrite(t, db, hold(t, db, "worker", "jobs"), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO jobs VALUES (1)")
		return err
	})
	if err != nil {
		t.Errorf("a write under the fence: %v", err)
	}
	in(t, db.URL(), "guard", "list").want(t, cli.ExitOK).inOrder(t, "TABLE        RESOURCE  COVERS  PROBLEM\n",
		"public.jobs  jobs           1  -\n")
}

func TestGuardAddAgainAddsWhatIsMissingAndElseChangesNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	partitioned(t, db)
	add := []string{"guard", "add", "public.accounts", "--resource", "acc", "--key", "id"}
	in(t, db.URL(), add...).want(t, cli.ExitOK).narrow(t).inOrder(t, "is guarded from now on", "acc/<id>",
		"covers    3 tables", `Resource: "acc/…"}`,
		"p_resource => 'acc/…'", "TRUNCATE needs the fence of acc.", "run this command again")
	whole := act.GuardView{Table: "public.accounts", Resource: "acc", Key: "id", Covered: 3}
	again := in(t, db.URL(), append(add, "-o", "json")...).want(t, cli.ExitOK)
	if v := decode[act.GuardedView](t, again.stdout); v != (act.GuardedView{GuardView: whole}) {
		t.Errorf("%+v", v)
	}
	in(t, db.URL(), add...).want(t, cli.ExitOK, "table public.accounts was guarded in this way already\n")

	execute(t, db, "CREATE TABLE accounts_3 PARTITION OF accounts FOR VALUES FROM (200) TO (300)")
	in(t, db.URL(), "guard", "list").want(t, cli.ExitOK, "public.accounts  acc/<id>       4  public.accounts_3 has no "+
		"guard for\n").narrow(t).inOrder(t,
		"TRUNCATE\n", "\nincomplete: 1 of 1.", "\npglock-admin guard add public.accounts --resource acc --key id\n")
	if g := guards(t, db); len(g) != 1 || g[0].Covered != 4 || g[0].Problem == "" {
		t.Errorf("%+v", g)
	}
	execute(t, db, "CREATE TABLE accounts_4 PARTITION OF accounts FOR VALUES FROM (300) TO (400)")
	in(t, db.URL(), "guard", "list").want(t, cli.ExitOK).narrow(t).inOrder(t, "accounts_3", "accounts_4")
	in(t, db.URL(), add...).want(t, cli.ExitOK, "table public.accounts was guarded already; the missing parts were "+
		"added\n",
		"5 tables")
	if g := guards(t, db); len(g) != 1 || g[0].Covered != 5 || g[0].Problem != "" {
		t.Errorf("%+v", g)
	}
}

func TestGuardAddOfAPartSaysThatItIsUnderTheGuardOfTheWhole(t *testing.T) {
	db := pgtest.Parallel(t)
	partitioned(t, db)
	in(t, db.URL(), "guard", "add", "accounts", "--key", "id").want(t, cli.ExitOK)
	part := []string{"guard", "add", "accounts_1", "--resource", "accounts", "--key", "id"}
	in(t, db.URL(), part...).want(t, cli.ExitOK, "table public.accounts_1 was guarded in this way already\n",
		"a part of another table", "guard list")
	v := decode[act.GuardedView](t, in(t, db.URL(), append(part, "-o", "json")...).want(t, cli.ExitOK).stdout)
	if !v.Part || v.Changed || v.Table != "public.accounts_1" {
		t.Errorf("%+v", v)
	}
	in(t, db.URL(), "guard", "add", "accounts_1").want(t, cli.ExitUsage, "guarded already", "accounts/<id>",
		"guard list",
		"guard drop accounts_1 --yes")
}

func TestGuardDropNeedsAWordAndTellsHowToGoBack(t *testing.T) {
	db := pgtest.Parallel(t)
	partitioned(t, db)
	in(t, db.URL(), "guard", "add", "accounts", "--key", "id").want(t, cli.ExitOK)
	in(t, db.URL(), "guard", "drop", "accounts").want(t, cli.ExitUsage, "lets everybody write to table accounts "+
		"without a fence", "it needs --yes",
		"try: pglock-admin guard drop accounts --yes, after a look at pglock-admin guard list\n")
	conn := db.Conn(t)
	if state := written(t, conn, "INSERT INTO accounts VALUES (1, 1)"); state != "LK011" {
		t.Errorf("without --yes the guard is gone: %q", state)
	}
	in(t, db.URL(), "guard", "drop", "accounts", "--yes").want(t, cli.ExitOK).narrow(t).inOrder(t,
		"table public.accounts is not guarded any more\n",
		"accounts/<id>", "3 tables", "\npglock-admin guard add public.accounts --resource accounts --key id\n")
	if state := written(t, conn, "INSERT INTO accounts VALUES (1, 1)"); state != "" {
		t.Errorf("after the drop: %q", state)
	}
	in(t, db.URL(), "guard", "drop", "accounts", "--yes").want(t, cli.ExitNotHeld, "is not guarded",
		"try: pglock-admin guard list")

	in(t, db.URL(), "guard", "add", "public.accounts", "--resource", "accounts", "--key", "id").want(t, cli.ExitOK,
		"from now on")
	v := decode[act.GuardView](t, in(t, db.URL(), "guard", "drop", "accounts", "--yes", "-o", "json").want(t,
		cli.ExitOK).stdout)
	if v != (act.GuardView{Table: "public.accounts", Resource: "accounts", Key: "id", Covered: 3}) {
		t.Errorf("%+v", v)
	}
}

func TestGuardDropMakesNoHoleInTheGuardOfTheWhole(t *testing.T) {
	db := pgtest.Parallel(t)
	partitioned(t, db)
	execute(t, db, "CREATE TABLE other (id int)")
	in(t, db.URL(), "guard", "add", "accounts").want(t, cli.ExitOK)
	in(t, db.URL(), "guard", "add", "other", "--resource", "accounts").want(t, cli.ExitOK)
	before := guards(t, db)
	in(t, db.URL(), "guard", "drop", "accounts_1", "--yes").want(t, cli.ExitUsage, "table public.accounts_1 is "+
		"guarded as a part of table public.accounts,",
		"nothing was changed", "try: pglock-admin guard drop public.accounts --yes, or detach accounts_1")
	if after := guards(t, db); !slices.Equal(before, after) || after[1].Problem != "" {
		t.Errorf("the guards are %+v", after)
	}
	execute(t, db, "ALTER TABLE accounts DETACH PARTITION accounts_1")
	in(t, db.URL(), "guard", "drop", "accounts_1", "--yes").want(t, cli.ExitOK, "public.accounts_1 is not guarded "+
		"any more")
}

func TestGuardNamesTheTableThatTheSearchPathMeans(t *testing.T) {
	db := pgtest.Parallel(t)
	for _, sql := range []string{"CREATE SCHEMA aaa", "CREATE TABLE aaa.jobs (id int)", "CREATE TABLE jobs (id int)"} {
		execute(t, db, sql)
	}
	in(t, db.URL(), "guard", "add", "aaa.jobs", "--resource", "archive").want(t, cli.ExitOK, "table aaa.jobs is",
		"archive")
	in(t, db.URL(), "guard", "add", "jobs").want(t, cli.ExitOK, "table public.jobs is", "resource  jobs\n")
	in(t, db.URL(), "guard", "drop", "jobs", "--yes").want(t, cli.ExitOK, "table public.jobs is")
	if g := guards(t, db); len(g) != 1 || g[0].Table != "aaa.jobs" {
		t.Errorf("%+v", g)
	}
}

func TestGuardWaitsForWritersNoLongerThanItIsTold(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "CREATE TABLE jobs (id int)")
	writer := db.Conn(t)
	for _, sql := range []string{"BEGIN", "INSERT INTO jobs VALUES (1)"} {
		if state := written(t, writer, sql); state != "" {
			t.Fatal(state)
		}
	}
	in(t, db.URL(), "guard", "add", "jobs", "--lock-timeout", "50ms").want(t, cli.ExitFailure,
		"table jobs was in use for longer than 50ms", "nothing was changed",
		"a longer --lock-timeout", "pg_stat_activity", "'jobs'::regclass")
	in(t, db.URL(), "guard", "add", "jobs", "--timeout", "9s").want(t, cli.ExitFailure, "in use for longer than 4.5s")
	in(t, db.URL(), "guard", "add", "jobs", "--lock-timeout", "10s").want(t, cli.ExitUsage, "shorter than --timeout, "+
		"which is 10s")
	in(t, db.URL(), "guard", "add", "jobs", "--lock-timeout", "0s").want(t, cli.ExitUsage, "from 1ms to 1d")
	if g := guards(t, db); len(g) != 0 {
		t.Errorf("%+v", g)
	}

	done := make(chan answer, 1)
	go func() { done <- in(t, db.URL(), "guard", "add", "jobs", "--timeout", "2m", "--lock-timeout", "1m") }()
	blocked(t, db)
	if state := written(t, writer, "COMMIT"); state != "" {
		t.Fatal(state)
	}
	(<-done).want(t, cli.ExitOK, "is guarded from now on")

	for _, sql := range []string{"BEGIN", "SELECT FROM jobs"} {
		if state := written(t, writer, sql); state != "" {
			t.Fatal(state)
		}
	}
	in(t, db.URL(), "guard", "drop", "jobs", "--yes", "--lock-timeout", "50ms").want(t, cli.ExitFailure,
		"table jobs was in use for longer than 50ms")
	if g := guards(t, db); len(g) != 1 {
		t.Errorf("%+v", g)
	}
}

// blocked returns when the program waits for somebody's lock.
func blocked(tb testing.TB, db *pgtest.DB) {
	tb.Helper()
	pgtest.Eventually(tb, "the program waits for a lock", func() bool {
		return ask[bool](tb, db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND application_name LIKE 'pglock %/pglock-admin%' AND wait_event_type = 'Lock')`)
	})
}

func TestGuardRefusesWhatCannotBeGuardedAndSaysWhy(t *testing.T) {
	db := pgtest.Parallel(t)
	for _, sql := range []string{"CREATE TABLE jobs (id int, at timestamptz)", "CREATE VIEW seen AS SELECT 1"} {
		execute(t, db, sql)
	}
	for _, tc := range []struct {
		args []string
		says []string
	}{
		{[]string{"nosuch"}, []string{`"nosuch" does not exist`, "as in SQL: public.accounts"}},
		{[]string{"nosuch.jobs"}, []string{`schema "nosuch" does not exist`, "as in SQL: public.accounts"}},
		{[]string{"a.b.c"}, []string{"as in SQL: public.accounts"}},
		{[]string{"a.b.c.d"}, []string{"as in SQL: public.accounts"}},
		{[]string{"my jobs"}, []string{"as in SQL: public.accounts"}},
		{[]string{""}, []string{"table is", "name a table"}},
		{[]string{"seen"}, []string{"public.seen", "a view"}},
		{[]string{"pglock.locks"}, []string{"a table of pglock"}},
		{[]string{"jobs", "--key", "nope"}, []string{"key is 'nope'", "no such column, but its key can be id",
			"try: the same command, with --key and the name of a column"}},
		{[]string{"jobs", "--key", "at"}, []string{"timestamp with time zone", "must be an integer"}},
		{[]string{"jobs", "--key", ""}, []string{"key is", "name a column"}},
		{[]string{"jobs", "--resource", ""}, []string{"resource is empty"}},
		{[]string{"jobs", "--resource", strings.Repeat("x", pglock.MaxNameBytes+1)}, []string{"resource", "512"}},
	} {
		a := in(t, db.URL(), append([]string{"guard", "add"}, tc.args...)...).want(t, cli.ExitUsage, tc.says...)
		if strings.Contains(a.stderr, "try: pglock-admin migrate") {
			t.Errorf("%q: %s", tc.args, a.stderr)
		}
	}
	for _, name := range []string{"nosuch", "nosuch.jobs", "my jobs"} {
		in(t, db.URL(), "guard", "drop", name, "--yes").want(t, cli.ExitUsage, "as in SQL: public.accounts")
	}
	in(t, db.URL(), "guard", "drop", "seen", "--yes").want(t, cli.ExitNotHeld, "guard list")
	if g := guards(t, db); len(g) != 0 {
		t.Errorf("%+v", g)
	}

	in(t, db.URL(), "guard", "add", "jobs").want(t, cli.ExitOK)
	for _, other := range [][]string{{"--resource", "other"}, {"--key", "id"}} {
		in(t, db.URL(), append([]string{"guard", "add", "jobs"}, other...)...).want(t, cli.ExitUsage,
			"guarded already, by resource 'jobs'", "guard drop jobs --yes")
	}
}

func TestGuardCommandLinesThatAreWrongExitWithTwo(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"guard": "needs a command", "guard sideways": "sideways", "guard add": "name of one table",
		"guard add a b": "name of one table",
		"guard drop":    "name of one table", "guard drop a": "--yes", "guard list a": "a", "doctor a": "a",
	} {
		admin(t, strings.Fields(args)...).want(t, cli.ExitUsage, says)
	}
	for _, args := range []string{"guard", "guard add", "guard drop", "guard list", "doctor"} {
		admin(t, append(strings.Fields(args), "--help")...).want(t, cli.ExitOK, "Usage:", "Examples:")
	}
}

func TestWhoDoesNotOwnTheTableIsToldWhoMust(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "CREATE TABLE jobs (id int)")
	user := asUser(t, db, "pglock_user")
	in(t, user, "guard", "add", "jobs").want(t, cli.ExitPermission, "as the table's owner")
	in(t, db.URL(), "guard", "add", "jobs").want(t, cli.ExitOK)
	in(t, user, "guard", "drop", "jobs", "--yes").want(t, cli.ExitPermission, "as the table's owner")
	in(t, user, "guard", "list").want(t, cli.ExitOK, "public.jobs")
	if g := guards(t, db); len(g) != 1 || g[0].Problem != "" {
		t.Errorf("%+v", g)
	}
}

func TestGuardsNeedTheSchema(t *testing.T) {
	t.Parallel()
	missing := pgtest.EmptyDatabase(t)
	for _, command := range []string{"guard add jobs", "guard drop jobs --yes"} {
		in(t, missing.URL(), strings.Fields(command)...).want(t, cli.ExitSchema, "missing",
			"try: pglock-admin migrate up\n")
	}
	addr := closedPort(t)
	in(t, "postgres://me:secret@"+addr+"/db", "guard", "list").want(t, cli.ExitUnreachable, addr)
}

func TestGuardsWorkInAnotherSchema(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	execute(t, db, "CREATE TABLE jobs (id int)")
	mine := func(args ...string) answer { return in(t, db.URL(), append(args, "--schema", "My locks")...) }
	mine("migrate", "up").want(t, cli.ExitOK)
	mine("guard", "add", "jobs").want(t, cli.ExitOK, "public.jobs is guarded from now on")
	mine("guard", "list").want(t, cli.ExitOK, "public.jobs")
	mine("migrate", "down", "--yes").want(t, cli.ExitFailure, "public.jobs", "try: pglock-admin guard drop TABLE "+
		"--yes --schema 'My locks'")
	mine("guard", "drop", "jobs").want(t, cli.ExitUsage, "--yes --schema 'My locks'")
	mine("guard", "drop", "jobs", "--yes").want(t, cli.ExitOK,
		"guard add public.jobs --resource jobs --schema 'My locks'\n")
	mine("migrate", "down", "--yes").want(t, cli.ExitOK)
}

func TestTextsOfGuardsAreQuoted(t *testing.T) {
	db := pgtest.Parallel(t)
	table, resource, column := "ev\x1b[2Jil\ntable", "it's \x1b]0;x\a\u202e\u009b1m", "ke\x1b[1my"
	name := "public." + pgx.Identifier{table}.Sanitize()
	execute(t, db, fmt.Sprintf("CREATE TABLE %s (%s int) PARTITION BY RANGE (%[2]s)", name,
		pgx.Identifier{column}.Sanitize()))
	add := []string{"guard", "add", name, "--resource", resource, "--key", column}
	safe := func(a answer) {
		t.Helper()
		for _, r := range a.stdout + a.stderr {
			if r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e') {
				t.Errorf("%U in %q", r, a.stdout+a.stderr)
			}
		}
	}
	for _, format := range []string{"table", "json"} {
		safe(in(t, db.URL(), append(add, "-o", format)...).want(t, cli.ExitOK))
		safe(in(t, db.URL(), "guard", "list", "-o", format).want(t, cli.ExitOK))
		safe(in(t, db.URL(), "doctor", "-o", format).want(t, cli.ExitOK))
		safe(in(t, db.URL(), "guard", "drop", name, "-o", format).want(t, cli.ExitUsage))
		safe(in(t, db.URL(), "guard", "add", name, "-o", format).want(t, cli.ExitUsage))
	}
	if g := guards(t, db); len(g) != 1 || g[0].Table != name || g[0].Resource != resource || g[0].Key != column {
		t.Errorf("JSON does not give the texts back: %+v", g)
	}
	execute(t, db, fmt.Sprintf("CREATE TABLE part PARTITION OF %s DEFAULT", name))
	safe(in(t, db.URL(), "guard", "list").want(t, cli.ExitOK, "has no guard for"))
	safe(in(t, db.URL(), "guard", "drop", name, "--yes").want(t, cli.ExitOK))
}

func TestEventsOfEveryKindAreTold(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "CREATE TABLE jobs (id int)")
	hold(t, db, "worker-1", "files")
	in(t, db.URL(), "guard", "add", "jobs", "--resource", "r").want(t, cli.ExitOK)
	conn := db.Conn(t)
	for _, sql := range []string{"SELECT pglock.break_lock('files', 'is stuck', 'dave@ops')",
		"SELECT pglock.acquire_lease('files', gen_random_uuid(), gen_random_uuid(), 'worker-2', '1 minute')",
		"UPDATE pglock.locks SET expires_at = clock_timestamp()",
		"SELECT pglock.acquire_lease('files', gen_random_uuid(), gen_random_uuid(), 'worker-3', '1 minute')",
		"BEGIN", "SELECT pglock.bypass_guards('repair', 'alice@ops')", "INSERT INTO jobs VALUES (1)", "COMMIT",
		"SELECT pglock.bypass_guards('for nothing', 'bob@ops')",
		"SELECT pglock.advance_epoch('restored', 'carol@ops')"} {
		if state := written(t, conn, sql); state != "" {
			t.Fatalf("%s: %s", sql, state)
		}
	}
	admin := must.Get(lockadmin.New(t.Context(), db.Pool(t)))(t)
	events, err := lists.All(admin.History(t.Context(), lockadmin.HistoryQuery{}))
	if err != nil || len(events) != 5 {
		t.Fatalf("%+v, %v", events, err)
	}
	user := events[0].DBUser
	for i, want := range []string{
		fmt.Sprintf("carol@ops (user %s) made every token from then on greater than %d: restored", user,
			events[0].Token),
		"bob@ops (user " + user + ") wrote past the guards, to no guarded table: for nothing",
		"alice@ops (user " + user + ") wrote past the guards, to public.jobs: repair",
		fmt.Sprintf("token %d of worker-2 expired; worker-3 has token %d", events[3].Token, events[3].NewToken),
		fmt.Sprintf("dave@ops (user %s) broke the lease of worker-1 with token %d: is stuck", user, events[4].Token),
	} {
		if told := look.Tell(events[i]); told != want {
			t.Errorf("%s: %q, want %q", events[i].Kind, told, want)
		}
	}
	in(t, db.URL(), "show", "files").want(t, cli.ExitOK).inOrder(t, "of worker-2 expired; worker-3 has",
		"broke the lease of worker-1")
}

// Whoever may make triggers could switch a guard off: it is not made, and if the right comes later everybody who looks
// hears of it, with what to do.
func TestGuardThatOthersCanSwitchOffIsRefusedAndShown(t *testing.T) {
	db := pgtest.Parallel(t)
	role := "guest_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execute(t, db, "CREATE TABLE jobs (id int); CREATE ROLE "+role+"; GRANT ALL ON jobs TO "+role)
	conn := db.Conn(t)
	t.Cleanup(func() {
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+
			role); err != nil {
			t.Error(err)
		}
	})
	revoke := "REVOKE TRIGGER ON public.jobs FROM " + role + " CASCADE"
	in(t, db.URL(), "guard", "add", "jobs").want(t, cli.ExitFailure, role+" may make triggers on public.jobs",
		"try: as the table's owner "+revoke)
	if state := written(t, conn, "INSERT INTO jobs VALUES (1)"); state != "" {
		t.Errorf("a guard was made: %q", state)
	}
	execute(t, db, revoke)
	in(t, db.URL(), "guard", "add", "jobs").want(t, cli.ExitOK)
	in(t, db.URL(), "doctor", "-o", "json").want(t, cli.ExitOK, `"item": "guard of public.jobs"`)
	execute(t, db, "GRANT TRIGGER ON jobs TO "+role+"; CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS "+
		"'BEGIN RETURN NULL; END'; CREATE OR REPLACE TRIGGER pglock_guard_truncate BEFORE TRUNCATE ON jobs EXECUTE "+
		"FUNCTION nothing()")
	in(t, db.URL(), "guard", "list").want(t, cli.ExitOK).narrow(t).inOrder(t, "may make triggers", "REVOKE TRIGGER",
		"pglock_guard_truncate", "\npglock-admin guard add public.jobs --resource jobs\n", "run the REVOKE first")
	for _, g := range guards(t, db) {
		if !strings.Contains(g.Problem, revoke) ||
			!strings.Contains(g.Problem, "pglock_guard_truncate of public.jobs is not as guard_table makes it") {
			t.Errorf("%+v", g)
		}
	}
	in(t, db.URL(), "doctor", "--strict").want(t, cli.ExitAttention, "WARNING", "guard of public.jobs")
	if f := finding(t, decode[explain.DoctorView](t, in(t, db.URL(), "doctor", "-o", "json").want(t,
		cli.ExitOK).stdout), "guard of public.jobs"); f.Severity != lockadmin.SeverityWarning ||
		!strings.Contains(f.Meaning, revoke) || !strings.Contains(f.Meaning, "pglock_guard_truncate") {
		t.Errorf("%+v", f)
	}
	add := "pglock-admin guard add public.jobs --resource jobs"
	for _, name := range []string{"jobs", "other"} { // the lock of the resource, and one that passes its fence
		l := hold(t, db, "worker", name)
		if name == "other" {
			if err := fencedstore.New(db.Pool(t)).Write(t.Context(), fencedstore.Fence{Lease: l, Resource: "jobs"},
				func(context.Context, pgx.Tx) error {
					return nil
				}); err != nil {
				t.Fatal(err)
			}
		}
		in(t, db.URL(), "why", name).want(t, cli.ExitOK, "The guard of table public.jobs is broken", add,
			"REVOKE TRIGGER")
		e := decode[lockadmin.Explanation](t, in(t, db.URL(), "why", name, "-o", "json").want(t, cli.ExitOK).stdout)
		if len(e.Guards) != 1 || e.Guards[0].Table != "public.jobs" ||
			!slices.ContainsFunc(e.Verdicts, func(v lockadmin.Verdict) bool {
				return v.Kind == "guard"
			}) {
			t.Errorf("why %s: %+v", name, e)
		}
	}
	silent := func(name string) {
		t.Helper()
		if a := in(t, db.URL(), "why", name).want(t, cli.ExitOK); strings.Contains(a.stdout, "guard") {
			t.Errorf("why %s:\n%s", name, a.stdout)
		}
	}
	silent("unrelated")
	execute(t, db, revoke)
	in(t, db.URL(), "guard", "add", "jobs").want(t, cli.ExitOK, "was guarded already")
	silent("jobs")
	in(t, db.URL(), "guard", "list").want(t, cli.ExitOK, "public.jobs  jobs           1  -\n")
}
