package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/act"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// latest is how the commands name the version of the schema.
var latest = fmt.Sprint("version ", migrations.Latest)

func TestMigrateMakesTellsAndRemovesTheSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyDatabase(t).URL()
	in(t, url, "migrate", "version").want(t, cli.ExitSchema, "schema pglock: missing", "needs "+latest,
		"try: pglock-admin migrate up\n")
	in(t, url, "prune").want(t, cli.ExitSchema, "try: pglock-admin migrate up")
	in(t, url, "migrate", "up").want(t, cli.ExitOK, latest, "it was missing")
	in(t, url, "migrate", "up").want(t, cli.ExitOK, "as before")
	v := decode[act.VersionView](t, in(t, url, "migrate", "version", "-o", "json").want(t, cli.ExitOK).stdout)
	if v.Version != migrations.Latest || v.Dirty || v.Needed != migrations.Latest || v.Schema != "pglock" {
		t.Errorf("%+v", v)
	}
	in(t, url, "migrate", "down").want(t, cli.ExitUsage, "deletes every lock", "--yes")
	in(t, url, "list").want(t, cli.ExitOK)
	in(t, url, "migrate", "down", "--yes").want(t, cli.ExitOK, "missing", "it was "+latest)
	in(t, url, "list").want(t, cli.ExitSchema)
	in(t, url, "migrate", "down", "--yes").want(t, cli.ExitOK)
}

func TestMigrateWorksInAnotherSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyDatabase(t).URL()
	in(t, url, "prune", "--schema", "My locks").want(t, cli.ExitSchema, "migrate up --schema 'My locks'")
	in(t, url, "migrate", "up", "--schema", "My locks").want(t, cli.ExitOK)
	in(t, url, "list", "--schema", "My locks").want(t, cli.ExitOK)
	in(t, url, "list").want(t, cli.ExitSchema)
	in(t, url, "migrate", "up", "--schema", "pg_mine").want(t, cli.ExitUsage, "pg_")
	in(t, url, "migrate", "up", "--schema", strings.Repeat("x", 64)).want(t, cli.ExitUsage)
}

func TestAMarkThatAFailedStepHasLeftIsPutRight(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "UPDATE pglock.pglock_schema_migrations SET dirty = true")
	in(t, db.URL(), "migrate", "version").want(t, cli.ExitOK, latest+"\n")
	in(t, db.URL(), "migrate", "up").want(t, cli.ExitOK, "as before")
	if dirty := ask[bool](t, db, "SELECT dirty FROM pglock.pglock_schema_migrations"); dirty {
		t.Error("the mark is left")
	}
}

func TestMigrateForceIsTheWayOutWhereSomethingWasChangedByHand(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, fmt.Sprintf("UPDATE pglock.pglock_schema_migrations SET version = %d, dirty = true",
		migrations.Latest+3))
	force := fmt.Sprint("migrate force ", migrations.Latest)
	in(t, db.URL(), "migrate", "version").want(t, cli.ExitSchema, latest+", marked dirty", force)
	in(t, db.URL(), "migrate", "down", "--yes").want(t, cli.ExitSchema, "changed by hand", force)
	in(t, db.URL(), "list").want(t, cli.ExitOK) // programs work
	in(t, db.URL(), "migrate", "up").want(t, cli.ExitOK, "as before")
	in(t, db.URL(), "migrate", "force", strconv.Itoa(migrations.Latest+1)).want(t, cli.ExitUsage)
	in(t, db.URL(), "migrate", "force", "0").want(t, cli.ExitUsage, fmt.Sprint("must be ", migrations.Latest))
	in(t, db.URL(), "migrate", "force", strconv.Itoa(migrations.Latest)).want(t, cli.ExitOK)
	in(t, db.URL(), "migrate", "version").want(t, cli.ExitOK, latest+"\n")
	in(t, db.URL(), "migrate", "down", "--yes").want(t, cli.ExitOK)
}

func TestMigrateForceOfAMissingSchemaIsRefused(t *testing.T) {
	t.Parallel()
	in(t, pgtest.EmptyDatabase(t).URL(), "migrate", "force", "1").want(t, cli.ExitSchema, "migrate up")
}

func TestASchemaOfANewerReleaseIsToldApart(t *testing.T) {
	db := pgtest.Parallel(t)
	next := strconv.Itoa(migrations.Latest + 1)
	execute(t, db, `CREATE OR REPLACE FUNCTION pglock.schema_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT `+
		next+`'`)
	execute(t, db, `UPDATE pglock.pglock_schema_migrations SET version = `+next)
	in(t, db.URL(), "list").want(t, cli.ExitOK) // it serves this release too
	in(t, db.URL(), "doctor").want(t, cli.ExitOK, "pglock, version "+next, "Newer than this library")
	execute(t, db, `CREATE OR REPLACE FUNCTION pglock.serves_from() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT `+
		next+`'`)
	in(t, db.URL(), "list").want(t, cli.ExitSchema, "a newer pglock-admin")
	in(t, db.URL(), "migrate", "up").want(t, cli.ExitSchema, "a newer pglock-admin")
	in(t, db.URL(), "migrate", "version").want(t, cli.ExitSchema, "a newer pglock-admin")
}

// No release before this one has left a schema: what is said of one is shown without.
func TestASchemaOfAnOlderReleaseIsNamedWithBothVersions(t *testing.T) {
	t.Parallel()
	if got, want := cli.Message(&pglock.SchemaError{Schema: "pglock", Have: 1, Need: 2}), "schema pglock has version "+
		"1, this program needs 2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Programs queue behind it meanwhile.
func TestMigrateDownThatSomebodyIsInTheWayOfNamesThem(t *testing.T) {
	db := pgtest.Parallel(t)
	reader := db.Conn(t)
	for _, sql := range []string{"BEGIN", "SELECT FROM pglock.locks"} {
		if state := written(t, reader, sql); state != "" {
			t.Fatal(state)
		}
	}
	for options, code := range map[string]int{"-c lock_timeout=50ms": cli.ExitFailure, "": cli.ExitUnreachable} {
		a := in(t, withOptions(t, db.URL(), options), "migrate", "down", "--yes", "--timeout", "4s").want(t, code,
			"was rolled back: ", "programs wait behind this command")
		pid := pgtest.One[uint32](t, db.Conn(t), "SELECT DISTINCT pid FROM ("+queryOf(t, a.stderr)+") q")
		if want := reader.PgConn().PID(); pid != want {
			t.Errorf("the query of the advice finds %d, want %d", pid, want)
		}
	}
}
