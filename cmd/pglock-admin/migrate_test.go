package main

import (
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

func TestMigrateMakesTellsAndRemovesTheSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyDatabase(t).URL()
	in(t, url, "migrate", "version").want(t, exitOK, "missing", "migrate up")
	in(t, url, "list").want(t, exitSchema, "try: pglock-admin migrate up")
	in(t, url, "migrate", "up").want(t, exitOK, "version 1", "it was missing")
	in(t, url, "migrate", "up").want(t, exitOK, "as before")
	v := decode[versionView](t, in(t, url, "migrate", "version", "-o", "json").want(t, exitOK).stdout)
	if v.Version != 1 || v.Dirty || v.Needed != 1 || v.Schema != "pglock" {
		t.Errorf("%+v", v)
	}
	in(t, url, "migrate", "down").want(t, exitUsage, "deletes every lock", "--yes")
	in(t, url, "list").want(t, exitOK)
	in(t, url, "migrate", "down", "--yes").want(t, exitOK, "missing", "it was version 1")
	in(t, url, "list").want(t, exitSchema)
	in(t, url, "migrate", "down", "--yes").want(t, exitOK)
}

func TestMigrateWorksInAnotherSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyDatabase(t).URL()
	in(t, url, "list", "--schema", "My locks").want(t, exitSchema, "migrate up --schema 'My locks'")
	in(t, url, "migrate", "up", "--schema", "My locks").want(t, exitOK)
	in(t, url, "list", "--schema", "My locks").want(t, exitOK)
	in(t, url, "list").want(t, exitSchema)
	in(t, url, "migrate", "up", "--schema", "pg_mine").want(t, exitUsage, "pg_")
	in(t, url, "migrate", "up", "--schema", strings.Repeat("x", 64)).want(t, exitUsage)
}

func TestMigrateForceIsTheWayOutOfDirty(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	in(t, db.URL(), "migrate", "up").want(t, exitOK)
	execute(t, db, "UPDATE pglock.pglock_schema_migrations SET dirty = true")
	in(t, db.URL(), "migrate", "version").want(t, exitOK, "marked dirty")
	in(t, db.URL(), "migrate", "up").want(t, exitSchema, "migrate force 1")
	in(t, db.URL(), "migrate", "force", "7").want(t, exitUsage)
	in(t, db.URL(), "migrate", "force", "1").want(t, exitOK)
	in(t, db.URL(), "migrate", "up").want(t, exitOK, "as before")
}

func TestMigrateForceOfAMissingSchemaIsRefused(t *testing.T) {
	t.Parallel()
	in(t, pgtest.EmptyDatabase(t).URL(), "migrate", "force", "1").want(t, exitSchema, "migrate up")
}

func TestASchemaOfANewerReleaseIsToldApart(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	in(t, db.URL(), "migrate", "up").want(t, exitOK)
	execute(t, db, `CREATE OR REPLACE FUNCTION pglock.schema_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2'`)
	execute(t, db, `UPDATE pglock.pglock_schema_migrations SET version = 2`)
	in(t, db.URL(), "list").want(t, exitSchema, "a newer pglock-admin")
	in(t, db.URL(), "migrate", "up").want(t, exitSchema, "a newer pglock-admin")
	in(t, db.URL(), "migrate", "version").want(t, exitOK, "use a newer one")
}
