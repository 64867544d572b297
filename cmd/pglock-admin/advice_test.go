package main

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/shown"
)

// withOptions adds what PGOPTIONS would say.
func withOptions(t *testing.T, address, options string) string {
	t.Helper()
	u := must.Get(url.Parse(address))(t)
	query := u.Query()
	query.Set("options", options)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return u.String()
}

func TestSettingsThatTheServerRefusesAreAnErrorOfUsage(t *testing.T) {
	db := pgtest.Parallel(t)
	for _, command := range []string{"list", "migrate version"} {
		in(t, withOptions(t, db.URL(), "-c nonsense=on"), strings.Fields(command)...).want(t, cli.ExitUsage,
			`unrecognized configuration parameter "nonsense"`, "try: other settings in the connection string")
	}
}

func TestAServerThatTakesNoWritesIsNoPlaceForChanges(t *testing.T) {
	t.Parallel()
	const readOnly = "-c default_transaction_read_only=on" // as on a standby
	db := pgtest.Database(t)
	execute(t, db, "CREATE TABLE t (id int)")
	made, empty := withOptions(t, db.URL(), readOnly), withOptions(t, pgtest.EmptyDatabase(t).URL(), readOnly)
	in(t, made, "migrate", "up").want(t, cli.ExitOK, "as before")
	in(t, made, "migrate", "version").want(t, cli.ExitOK)
	in(t, empty, "migrate", "up").want(t, cli.ExitUnreachable, "stays missing", "read-only",
		"target_session_attrs=read-write")
	in(t, made, "list").want(t, cli.ExitOK)
	for _, command := range []string{"break a --reason r", "prune", "guard add t", "migrate down --yes"} {
		in(t, made, strings.Fields(command)...).want(t, cli.ExitUnreachable, "target_session_attrs=read-write")
	}
}

func TestWhoHasToWaitForAnotherMigrationIsToldSo(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	// while its connection is open
	execute(t, db, "SELECT pg_advisory_lock(hashtextextended('pglock migrations pglock', 0))")
	in(t, db.URL(), "migrate", "up", "--timeout", "6s").want(t, cli.ExitUnreachable, "another program is migrating "+
		"this schema: no answer within 6s (--timeout)", "a longer --timeout")
}

// A step that waits ends with the time of the command, and is rolled back.
func TestAStepThatTakesTooLongIsRolledBack(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	busy := db.Conn(t)
	for _, sql := range []string{"BEGIN", "CREATE SCHEMA pglock"} {
		if state := written(t, busy, sql); state != "" {
			t.Fatal(state)
		}
	}
	in(t, db.URL(), "migrate", "up", "--timeout", "6s").want(t, cli.ExitUnreachable,
		"schema pglock stays missing, because the step to version 1 was rolled back: no answer within 6s (--timeout)\n",
		"try: the same command again with a longer --timeout")
	if state := written(t, busy, "ROLLBACK"); state != "" {
		t.Fatal(state)
	}
	in(t, db.URL(), "migrate", "version").want(t, cli.ExitSchema, "schema pglock: missing\n")
	in(t, db.URL(), "migrate", "up").want(t, cli.ExitOK, latest)
}

// What is advised must not be refused in its turn.
func TestNobodyIsToldToMigrateWhereThatIsRefused(t *testing.T) {
	db := pgtest.Parallel(t)
	const here = "schema pglock has it"
	for command, says := range map[string]string{"prune": "belongs to PostgreSQL", "doctor": "belongs to PostgreSQL",
		"list": here, "guard list": here} {
		if a := in(t, db.URL(), append(strings.Fields(command), "--schema", "pg_catalog")...).want(t, cli.ExitSchema,
			says); strings.Contains(a.stderr, "migrate up") {
			t.Errorf("%s: %s", command, a.stderr)
		}
	}
	in(t, db.URL(), "migrate", "up", "--schema", "pg_catalog").want(t, cli.ExitUsage, `schema is "pg_catalog": it must`)
}

func TestAMissingSchemaIsSaidToBeMadeInTheWayThatIsOpen(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	pgtest.Database(t) // it has the roles
	user := asUser(t, db, "pglock_user")
	says := func(address, hint string) {
		t.Helper()
		for _, command := range []string{"prune", "migrate version", "doctor"} {
			in(t, address, strings.Fields(command)...).want(t, cli.ExitSchema, "try: "+hint)
		}
	}
	says(db.URL(), "pglock-admin migrate up\n")
	says(user, "pglock-admin migrate up, as user "+ask[string](t, db, "SELECT current_user")+" or a superuser\n")
	execute(t, db, "CREATE SCHEMA pglock CREATE TABLE pglock_schema_migrations (version bigint NOT NULL PRIMARY KEY, "+
		"dirty boolean NOT NULL)")
	execute(t, db, "INSERT INTO pglock.pglock_schema_migrations VALUES (3, false)")
	says(db.URL(),
		"pglock-admin migrate force 0, if the schema really has that version; then pglock-admin migrate up\n")
	in(t, db.URL(), "migrate", "force", "0").want(t, cli.ExitOK)
	in(t, db.URL(), "migrate", "up").want(t, cli.ExitOK)
	execute(t, db, "DROP TABLE pglock.pglock_schema_migrations")
	in(t, db.URL(), "migrate", "down", "--yes").want(t, cli.ExitSchema, "the schema was made by another migration "+
		"tool\n")
}

// Whoever looks there runs what its owner has made. So the command is not ready to be pasted.
func TestASchemaOfAnotherRoleIsNamedWithItsOwner(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil) // which other databases are in use is a question to the whole server
	in(t, server.URL(), "migrate", "up").want(t, cli.ExitOK)
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	must.Get(conn.Exec(t.Context(), "CREATE ROLE mallory; ALTER SCHEMA pglock OWNER TO mallory"))(t)
	list := func() answer { return in(t, server.URL(), "list", "--schema", "nosuch") }
	list().want(t, cli.ExitSchema, "no pglock in schema nosuch, but schema pglock has it and belongs to mallory",
		"try: if that role may make functions for you: the same command with --schema pglock")

	// Who makes such a schema must not hide where the programs are.
	must.Get(conn.Exec(t.Context(), "CREATE DATABASE app TEMPLATE template0"))(t)
	config := must.Get(pgx.ParseConfig(server.URL()))(t)
	config.Database = "app"
	config.RuntimeParams["application_name"] = "pglock app-1/reporter[4711]"
	program := must.Get(pgx.ConnectConfig(t.Context(), config))(t)
	t.Cleanup(func() { _ = program.Close(context.WithoutCancel(t.Context())) })
	list().want(t, cli.ExitSchema, "probably the wrong database", "no pglock but in schema pglock, which belongs to "+
		"mallory,", "connected to database app", "/app?")
}

// No advice in the text of an error, no cause twice, no name of a package.
func TestAnErrorSaysEachThingOnce(t *testing.T) {
	t.Parallel()
	db, empty := pgtest.Database(t), pgtest.EmptyDatabase(t)
	hold(t, db, "worker", "a")
	hold(t, db, "reader", "b")
	execute(t, db, "CREATE TABLE jobs (id int)")
	execute(t, db, "CREATE TABLE guarded (id int)")
	execute(t, db, "CREATE VIEW seen AS SELECT 1")
	in(t, db.URL(), "guard", "add", "guarded").want(t, cli.ExitOK)
	for command, want := range map[string]string{
		"show none":                     "lock none does not exist",
		"waiters none":                  "lock none does not exist",
		"break none --reason r":         "lock none does not exist",
		"break a --reason r --token 99": "lock a is held with another token than 99; nothing was broken",
		"break a --reason r --token 0":  "--token is 0: it must be greater than 0",
		"guard add nosuch":              `relation "nosuch" does not exist (SQLSTATE 42P01)`,
		"guard add seen": "table is public.seen, which is a view: a guard needs a table of the " +
			"application (SQLSTATE 42809)",
		"guard add guarded --resource r": "table public.guarded is guarded already, by resource 'guarded' " +
			"(SQLSTATE 42710)",
		"guard drop jobs --yes": "table public.jobs is not guarded: there is nothing to drop (SQLSTATE " +
			"42704)",
		"migrate down --yes": "tables are guarded: public.guarded",
		"migrate force 0": "version is 0: it must be " + strings.TrimPrefix(latest, "version ") +
			`, which schema "pglock" says it has`,
		"list --schema nosuch":      "this database has no pglock in schema nosuch, but schema pglock has it",
		"prune --schema nosuch":     "schema nosuch is missing, or does not contain pglock",
		"prune --schema pg_catalog": "schema pg_catalog is missing, or does not contain pglock",
		"migrate version --schema pg_mine": `schema is "pg_mine": it must have 1 to 63 bytes of UTF-8, no $$, and not ` +
			"begin with pg_",
	} {
		a := in(t, db.URL(), strings.Fields(command)...)
		text, _, _ := strings.Cut(strings.TrimPrefix(a.stderr, "pglock-admin: "), "\n")
		if a.code == cli.ExitOK || text != want {
			t.Errorf("%s, exit code %d: %q, want %q", command, a.code, text, want)
		}
	}
	execute(t, empty, "CREATE FUNCTION public.no() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not "+
		"today' USING HINT = 'Come tomorrow.'; END $$")
	execute(t, empty, "CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('CREATE SEQUENCE') EXECUTE FUNCTION "+
		"public.no()")
	in(t, empty.URL(), "migrate", "up").want(t, cli.ExitFailure,
		"pglock-admin: schema pglock stays missing, because the step to version 1 was rolled back: not today "+
			"(SQLSTATE P0001)\nat: ", "\ntry: Come tomorrow; then the same command again\n")
	execute(t, empty, "DROP EVENT TRIGGER no")
	in(t, empty.URL(), "migrate", "up").want(t, cli.ExitOK)
}

// A schema that was restored without its data: what is advised mends it.
func TestWithoutTheRowOfTheInstallationTheAdviceIsTheStatementThatMendsIt(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "DELETE FROM pglock.installation")
	const mend = "INSERT INTO pglock.installation DEFAULT VALUES"
	for _, command := range []string{"list", "doctor", "break a --reason r"} {
		in(t, db.URL(), strings.Fields(command)...).want(t, cli.ExitFailure, "table installation of schema pglock is "+
			"empty", "\ntry: As the owner of the schema: "+mend+"; then the same command again\n")
	}
	execute(t, db, mend)
	in(t, db.URL(), "list").want(t, cli.ExitOK)
}

// The owner's name is not trusted: what is advised stays one argument of the shell.
func TestWhoHasTooManyRightsIsToldHowToRemoveASchema(t *testing.T) {
	db := pgtest.Parallel(t)
	was, give := newOwner(t, db)
	give()
	owner := was + "'; id; '"
	role := pgx.Identifier{owner}.Sanitize()
	execute(t, db, "ALTER ROLE "+was+" RENAME TO "+role)
	defer execute(t, db, "ALTER ROLE "+role+" RENAME TO "+was)
	in(t, db.URL(), "migrate", "down", "--yes").want(t, cli.ExitPermission, "whose code could run",
		"or with PGOPTIONS="+shown.Argument("-c role="+owner)+", if that role is to be trusted")
}

// A schema that was renamed: a migration would not help.
func TestWhoHasRenamedTheSchemaIsToldToRenameItBack(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "ALTER SCHEMA pglock RENAME TO locks2")
	for _, command := range []string{"list", "doctor", "break a --reason r"} {
		in(t, db.URL(), append(strings.Fields(command), "--schema", "locks2")...).want(t, cli.ExitSchema,
			"\ntry: ALTER SCHEMA \"locks2\" RENAME TO the name under which it was made, where its functions look for "+
				"each other\n")
	}
	execute(t, db, "ALTER SCHEMA locks2 RENAME TO pglock")
	in(t, db.URL(), "list").want(t, cli.ExitOK)
}

// What is advised asks the server that the command has asked.
func TestAdviceAboutASlowServerIsAboutTheSameServer(t *testing.T) {
	t.Parallel()
	at := "postgres://me@" + closedPort(t) + "/db"
	hangs := "psql " + at + " -c 'SELECT 1' shows whether the server hangs"
	for command, hint := range map[string]string{
		"list": "pglock-admin why --database-url " + at + " says whether somebody keeps pglock's tables, and " + hangs,
		"why":  hangs,
	} {
		admin(t, command, "--timeout", "1us", "--database-url", at).want(t, cli.ExitUnreachable,
			"try: a longer --timeout; "+hint+"\n")
	}
	admin(t, "why", "a", "--limit", "5", "--database-url", at).want(t, cli.ExitUsage,
		"try: pglock-admin why --database-url "+at+"\n")
}

// A look that takes too long is not advised to look.
func TestWhyThatRunsOutOfTimeDoesNotAdviseItself(t *testing.T) {
	db := pgtest.Parallel(t)
	for _, command := range []string{"why", "why jobs"} {
		a := in(t, db.URL(), append(strings.Fields(command), "--timeout", "1us")...).want(t, cli.ExitUnreachable,
			"(--timeout)", "try: a longer --timeout")
		if strings.Contains(a.stderr, "pglock-admin why") {
			t.Errorf("%s advises itself: %s", command, a.stderr)
		}
	}
}
