package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// latest is how the commands name the version of the schema.
var latest = fmt.Sprint("version ", migrations.Latest)

func TestMigrateMakesTellsAndRemovesTheSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyDatabase(t).URL()
	in(t, url, "migrate", "version").want(t, exitSchema, "schema pglock: missing", "needs "+latest,
		"try: pglock-admin migrate up\n")
	in(t, url, "list").want(t, exitSchema, "try: pglock-admin migrate up")
	in(t, url, "migrate", "up").want(t, exitOK, latest, "it was missing")
	in(t, url, "migrate", "up").want(t, exitOK, "as before")
	v := decode[versionView](t, in(t, url, "migrate", "version", "-o", "json").want(t, exitOK).stdout)
	if v.Version != migrations.Latest || v.Dirty || v.Needed != migrations.Latest || v.Schema != "pglock" {
		t.Errorf("%+v", v)
	}
	in(t, url, "migrate", "down").want(t, exitUsage, "deletes every lock", "--yes")
	in(t, url, "list").want(t, exitOK)
	in(t, url, "migrate", "down", "--yes").want(t, exitOK, "missing", "it was "+latest)
	in(t, url, "list").want(t, exitSchema)
	in(t, url, "migrate", "down", "--yes").want(t, exitOK)
}

func TestMigrateWorksInAnotherSchema(t *testing.T) {
	pgtest.Whole(t, "TestEveryAnswerNamesTheServerAndTheDatabase")
	t.Parallel()
	url := pgtest.EmptyDatabase(t).URL()
	in(t, url, "list", "--schema", "My locks").want(t, exitSchema, "migrate up --schema 'My locks'")
	in(t, url, "migrate", "up", "--schema", "My locks").want(t, exitOK)
	in(t, url, "list", "--schema", "My locks").want(t, exitOK)
	in(t, url, "list").want(t, exitSchema)
	in(t, url, "migrate", "up", "--schema", "pg_mine").want(t, exitUsage, "pg_")
	in(t, url, "migrate", "up", "--schema", strings.Repeat("x", 64)).want(t, exitUsage)
}

func TestAMarkThatAFailedStepHasLeftIsPutRight(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	execute(t, db, "UPDATE pglock.pglock_schema_migrations SET dirty = true")
	in(t, db.URL(), "migrate", "version").want(t, exitOK, latest+"\n")
	in(t, db.URL(), "migrate", "up").want(t, exitOK, "as before")
	if dirty := ask[bool](t, db, "SELECT dirty FROM pglock.pglock_schema_migrations"); dirty {
		t.Error("the mark is left")
	}
}

func TestMigrateForceIsTheWayOutWhereSomethingWasChangedByHand(t *testing.T) {
	pgtest.Whole(t, "TestMigrateMakesTellsAndRemovesTheSchema")
	t.Parallel()
	db := pgtest.Database(t)
	execute(t, db, fmt.Sprintf("UPDATE pglock.pglock_schema_migrations SET version = %d, dirty = true",
		migrations.Latest+3))
	force := fmt.Sprint("migrate force ", migrations.Latest)
	in(t, db.URL(), "migrate", "version").want(t, exitSchema, latest+", marked dirty", force)
	in(t, db.URL(), "migrate", "down", "--yes").want(t, exitSchema, "changed by hand", force)
	in(t, db.URL(), "list").want(t, exitOK) // programs work
	in(t, db.URL(), "migrate", "up").want(t, exitOK, "as before")
	in(t, db.URL(), "migrate", "force", strconv.Itoa(migrations.Latest+1)).want(t, exitUsage)
	in(t, db.URL(), "migrate", "force", "0").want(t, exitUsage, fmt.Sprint("must be ", migrations.Latest))
	in(t, db.URL(), "migrate", "force", strconv.Itoa(migrations.Latest)).want(t, exitOK)
	in(t, db.URL(), "migrate", "version").want(t, exitOK, latest+"\n")
	in(t, db.URL(), "migrate", "down", "--yes").want(t, exitOK)
}

func TestMigrateForceOfAMissingSchemaIsRefused(t *testing.T) {
	t.Parallel()
	in(t, pgtest.EmptyDatabase(t).URL(), "migrate", "force", "1").want(t, exitSchema, "migrate up")
}

func TestASchemaOfANewerReleaseIsToldApart(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	next := strconv.Itoa(migrations.Latest + 1)
	execute(t, db, `CREATE OR REPLACE FUNCTION pglock.schema_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT `+
		next+`'`)
	execute(t, db, `UPDATE pglock.pglock_schema_migrations SET version = `+next)
	in(t, db.URL(), "list").want(t, exitOK) // it serves this release too
	in(t, db.URL(), "doctor").want(t, exitOK, "pglock, version "+next, "Newer than this library")
	execute(t, db, `CREATE OR REPLACE FUNCTION pglock.serves_from() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT `+
		next+`'`)
	in(t, db.URL(), "list").want(t, exitSchema, "a newer pglock-admin")
	in(t, db.URL(), "migrate", "up").want(t, exitSchema, "a newer pglock-admin")
	in(t, db.URL(), "migrate", "version").want(t, exitSchema, "a newer pglock-admin")
}

// No release before this one has left a schema: what is said of one is shown without.
func TestASchemaOfAnOlderReleaseIsNamedWithBothVersions(t *testing.T) {
	t.Parallel()
	if got, want := message(&pglock.SchemaError{Schema: "pglock", Have: 1, Need: 2}), "schema pglock has version 1, "+
		"this program needs 2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
