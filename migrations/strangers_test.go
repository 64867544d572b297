package migrations_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// ran makes what the code of T_ROLE counts up when it runs: a sequence, which no rollback sets back.
const ran = `CREATE SEQUENCE public.ran;
	CREATE FUNCTION public.run(int DEFAULT 0) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
		'BEGIN PERFORM nextval(''public.ran''); RETURN $1; END';
	CREATE FUNCTION public.run_as_trigger() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM nextval(''public.ran''); RETURN NULL; END';
	`

const (
	strangersFunctions = `CREATE FUNCTION T_SCHEMA.schema_version() RETURNS int LANGUAGE sql AS 'SELECT public.run()';
		CREATE FUNCTION T_SCHEMA.start_client() RETURNS int LANGUAGE sql AS 'SELECT public.run()';
		ALTER FUNCTION T_SCHEMA.schema_version() OWNER TO T_ROLE;
		ALTER FUNCTION T_SCHEMA.start_client() OWNER TO T_ROLE;`
	strangersView = `CREATE VIEW T_SCHEMA.pglock_schema_migrations AS
			SELECT 0::bigint AS version, false AS dirty FROM public.run();
		ALTER VIEW T_SCHEMA.pglock_schema_migrations OWNER TO T_ROLE;`
	strangersTable = `CREATE TABLE T_SCHEMA.pglock_schema_migrations
			(version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL);
		CREATE INDEX ON T_SCHEMA.pglock_schema_migrations (dirty) WHERE public.run(1) = 1;
		CREATE TRIGGER run BEFORE INSERT OR DELETE ON T_SCHEMA.pglock_schema_migrations
			FOR EACH STATEMENT EXECUTE FUNCTION public.run_as_trigger();
		ALTER TABLE T_SCHEMA.pglock_schema_migrations OWNER TO T_ROLE;`
)

// A schema of another owner that says it is current is left alone. Version tells what it says, and a mark in its table
// is not put right: to write there would run what the owner has put on the table.
func TestI5_ACurrentSchemaOfAnotherOwnerRunsNothingWhenASuperuserMigrates(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	here := strings.NewReplacer("T_SCHEMA", "pglock", "T_ROLE", newRole(t, conn)).Replace
	execute(t, conn, here(ran+`CREATE SCHEMA T_SCHEMA AUTHORIZATION T_ROLE; `+strangersFunctions+strangersTable+`
		INSERT INTO T_SCHEMA.pglock_schema_migrations VALUES (2, true);
		CREATE OR REPLACE FUNCTION T_SCHEMA.schema_version() RETURNS int LANGUAGE sql AS 'SELECT 1'`))
	execute(t, conn, "SELECT setval('public.ran', 1, false)")
	version, dirty, err := migrations.Version(t.Context(), db.URL())
	if version != 1 || dirty || err != nil {
		t.Errorf("Version: %d, %v, %v", version, dirty, err)
	}
	if err := migrations.Check(t.Context(), db.URL()); err != nil {
		t.Errorf("Check: %v", err)
	}
	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Errorf("Up: %v", err)
	}
	if text(t, conn, `SELECT is_called::text FROM public.ran`) != "false" {
		t.Error("code of the schema's owner has run with the rights of a superuser")
	}
	noted := text(t, conn, `SELECT version || ' ' || dirty FROM pglock.pglock_schema_migrations`)
	if noted != "2 true" {
		t.Errorf("noted is %s", noted)
	}
}

// To those who are no superusers a SELECT, and a COPY, runs the policies of the table.
func TestI5_NoPolicyOfAnotherRunsWhenTheNoteIsRead(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	hers, mine := newRole(t, conn), newRole(t, conn)
	execute(t, conn, strings.NewReplacer("T_SCHEMA", "pglock", "T_ROLE", hers).Replace(ran+
		`CREATE SCHEMA T_SCHEMA AUTHORIZATION T_ROLE; `+strangersFunctions+strangersTable+`
		INSERT INTO T_SCHEMA.pglock_schema_migrations VALUES (2, true);
		ALTER TABLE T_SCHEMA.pglock_schema_migrations ENABLE ROW LEVEL SECURITY;
		CREATE POLICY p ON T_SCHEMA.pglock_schema_migrations USING (public.run(1) = 1);
		GRANT USAGE ON SCHEMA T_SCHEMA TO PUBLIC; GRANT SELECT ON T_SCHEMA.pglock_schema_migrations TO PUBLIC;
		GRANT ALL ON SEQUENCE public.ran TO PUBLIC`))
	execute(t, conn, "SELECT setval('public.ran', 1, false)")
	config := must.Get(pgx.ParseConfig(db.URL()))(t)
	config.RuntimeParams["role"] = strings.Trim(mine, `"`)
	if _, _, err := migrations.Version(t.Context(), config); err != nil {
		t.Error(err)
	}
	if text(t, conn, `SELECT is_called::text FROM public.ran`) != "false" {
		t.Error("the policy has run")
	}
}

// A table of a stranger may be long. Whoever looks keeps no more of it than its first row. The test runs alone: it
// counts what is allocated.
func TestALongTableOfAnotherIsNotKept(t *testing.T) {
	db := pgtest.EmptyDatabase(t)
	execute(t, db.Conn(t), `CREATE SCHEMA pglock;
		CREATE TABLE pglock.pglock_schema_migrations (version text, dirty boolean);
		INSERT INTO pglock.pglock_schema_migrations VALUES (7, false);
		INSERT INTO pglock.pglock_schema_migrations SELECT repeat('7', 1000000), false FROM generate_series(1, 64)`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	version, dirty, err := migrations.Version(t.Context(), db.URL())
	runtime.ReadMemStats(&after)
	if version != 0 || !dirty || err != nil {
		t.Errorf("Version = %d, %v, %v, want 0, and the note contradicts it", version, dirty, err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 32e6 {
		t.Errorf("whoever looks at 64 MB has allocated %d bytes", took)
	}
}

// Whoever may act as a superuser runs no code of the schema's owner either: neither what the owner has put on the
// table, nor the owner's functions.
func TestI5_NoCodeOfTheOwnerRunsForAMemberOfASuperuser(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	hers, mine, super := newRole(t, conn), newRole(t, conn), newRole(t, conn)
	execute(t, conn, strings.NewReplacer("T_SCHEMA", "pglock", "T_ROLE", hers).Replace(ran+
		`CREATE SCHEMA T_SCHEMA AUTHORIZATION T_ROLE; `+strangersFunctions+strangersTable+`
		INSERT INTO T_SCHEMA.pglock_schema_migrations VALUES (1, true);
		CREATE OR REPLACE FUNCTION T_SCHEMA.schema_version() RETURNS int LANGUAGE sql AS 'SELECT 1';
		CREATE FUNCTION T_SCHEMA.list_guards() RETURNS TABLE (table_name text) LANGUAGE sql AS
			'SELECT public.run()::text'`))
	execute(t, conn, "SELECT setval('public.ran', 1, false); GRANT ALL ON SEQUENCE public.ran TO PUBLIC; ALTER ROLE "+
		super+" SUPERUSER; GRANT "+super+", "+hers+" TO "+mine+"; ALTER ROLE "+mine+" LOGIN PASSWORD 'secret'")
	member := must.Get(pgx.ParseConfig(db.URL()))(t)
	member.User, member.Password = strings.Trim(mine, `"`), "secret"
	for who, config := range map[string]*pgx.ConnConfig{"a member": member, "a superuser": conn.Config()} {
		if err := migrations.Up(t.Context(), config); err != nil {
			t.Errorf("Up by %s: %v", who, err)
		}
		for what, err := range map[string]error{"Force": migrations.Force(t.Context(), config, 1),
			"Down": migrations.Down(t.Context(), config)} {
			right, is := errors.AsType[*migrations.RightError](err)
			if !is || !right.Code || right.Owner != strings.Trim(hers, `"`) {
				t.Errorf("%s by %s: %v, want a RightError that names the owner", what, who, err)
			}
		}
		if text(t, conn, `SELECT is_called::text FROM public.ran`) != "false" {
			t.Errorf("code of the schema's owner has run with the rights of %s", who)
		}
		execute(t, conn, "SELECT setval('public.ran', 1, false)")
	}
}

// Where everybody may make objects in public, a function there whose types fit better than the server's own is what a
// name without its schema means.
func TestI5_BetterMatchesInPublicDoNotRunWhenASuperuserMigrates(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	execute(t, conn, ran+`
		CREATE FUNCTION public.format(text, name) RETURNS text LANGUAGE sql AS 'SELECT public.run()::text';
		CREATE FUNCTION public.pg_has_role(regrole, text) RETURNS boolean LANGUAGE sql AS 'SELECT public.run() = 1';
		CREATE FUNCTION public.hashtextextended(text, int) RETURNS bigint LANGUAGE sql AS 'SELECT public.run()::bigint';
		CREATE FUNCTION public.gather(json, text, text) RETURNS json LANGUAGE sql AS
			'SELECT json_build_object(''lock_timeout'', public.run()::text)';
		CREATE AGGREGATE public.json_object_agg(text, text) (sfunc = public.gather, stype = json)`)
	untouched := func(when string) {
		t.Helper()
		if text(t, conn, `SELECT is_called::text FROM public.ran`) != "false" {
			t.Errorf("%s has run functions in public", when)
		}
		execute(t, conn, "SELECT setval('public.ran', 1, false)")
	}
	for _, when := range []string{"of a missing schema", "of a current schema"} {
		if _, _, err := migrations.Version(t.Context(), db.URL()); err != nil {
			t.Error(err)
		}
		untouched("Version " + when)
		if err := migrations.Check(t.Context(), db.URL()); err != nil {
			t.Error(err)
		}
		untouched("Check " + when)
		mustUp(t, db.URL())
		untouched("Up " + when)
	}
	mustDown(t, db.URL())
	untouched("Down")
}
