package migrations_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// catalog is everything that a migration could leave in a database, or in its server with roles. What the server itself
// brings has lower OIDs.
func catalog(t *testing.T, conn *pgx.Conn, roles bool) string {
	t.Helper()
	sql := `SELECT coalesce(string_agg(x, E'\n' ORDER BY x), '') FROM (
		SELECT 'schema ' || nspname || coalesce(nspacl::text, '') || coalesce(obj_description(oid, 'pg_namespace'), '') AS x
			FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'
		UNION ALL SELECT 'relation ' || relnamespace::regnamespace || '.' || relname FROM pg_class
			WHERE oid >= 16384 AND relnamespace::regnamespace::text !~ '^pg_toast'
		UNION ALL SELECT 'function ' || oid::regprocedure FROM pg_proc WHERE oid >= 16384
		UNION ALL SELECT 'type ' || typnamespace::regnamespace || '.' || typname FROM pg_type WHERE oid >= 16384
		UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger
		UNION ALL SELECT 'constraint ' || conname FROM pg_constraint WHERE oid >= 16384`
	if roles {
		sql += ` UNION ALL SELECT 'role ' || rolname FROM pg_roles`
	}
	all := pgtest.One[string](t, conn, sql+") everything")
	return all
}

func wantVersion(t *testing.T, url string, want int, opts ...migrations.Option) {
	t.Helper()
	version, dirty, err := migrations.Version(t.Context(), url, opts...)
	if err != nil || version != want || dirty {
		t.Errorf("Version = %d, dirty %v, %v; want %d", version, dirty, err, want)
	}
}

func upAndDown(t *testing.T, url string, opts ...migrations.Option) {
	t.Helper()
	wantVersion(t, url, 0, opts...)
	rounds := 1 // databases that migrate at the same time have two
	if pgtest.EveryTest {
		rounds = 2
	}
	for range rounds {
		for range 2 { // the second changes nothing
			mustUp(t, url, opts...)
			wantVersion(t, url, migrations.Latest, opts...)
		}
		for range 2 {
			mustDown(t, url, opts...)
			wantVersion(t, url, 0, opts...)
		}
	}
}

func TestDownLeavesNothing(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil) // no other test makes roles there
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
	execute(t, conn, "CREATE TABLE schema_migrations (version bigint, dirty boolean); INSERT INTO schema_migrations "+
		"VALUES (42, false)")
	before := catalog(t, conn, true)
	upAndDown(t, server.URL())
	if after := catalog(t, conn, true); after != before {
		t.Errorf("before:\n%s\n\nafter:\n%s", before, after)
	}
	var version int
	if err := conn.QueryRow(t.Context(), "SELECT version FROM schema_migrations").Scan(&version); err != nil ||
		version != 42 {
		t.Errorf("the application's own migrations stand at %d, %v", version, err)
	}
	mustUp(t, server.URL())
	execute(t, conn, "CREATE ROLE app IN ROLE pglock_user, pglock_admin")
	mustDown(t, server.URL())
	mustUp(t, server.URL())
	var member bool
	err = conn.QueryRow(t.Context(), "SELECT pg_has_role('app', 'pglock_user', 'MEMBER')").Scan(&member)
	if err != nil || member {
		t.Errorf("a member of roles that were dropped and made again is a member: %v, %v", member, err)
	}
}

func TestSchemaThatWasThereBeforeUpStaysWithWhatIsInIt(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE SCHEMA app; CREATE TABLE app.accounts (id int); CREATE SCHEMA pglock")
	before := catalog(t, conn, false)
	upAndDown(t, db.URL())
	upAndDown(t, db.URL(), migrations.WithSchema("app"))
	// What stays differs from before only by rights that were written out and taken back.
	unset := func(s string) string { return strings.ReplaceAll(s, "{postgres=UC/postgres}", "") }
	if after := catalog(t, conn, false); unset(after) != unset(before) {
		t.Errorf("before:\n%s\n\nafter:\n%s", before, after)
	}
}

func TestDownLeavesASchemaOfItsOwnToWhatElseIsInIt(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	mustUp(t, db.URL())
	conn := db.Conn(t)
	execute(t, conn, "CREATE TABLE pglock.mine AS SELECT 42 AS answer")
	mustDown(t, db.URL())
	var answer int
	if err := conn.QueryRow(t.Context(), "SELECT answer FROM pglock.mine").Scan(&answer); err != nil || answer != 42 {
		t.Errorf("the application's table: %d, %v", answer, err)
	}
}

func TestOddSchemaNamesWork(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{`My "odd" Schema`, "a, b", "ü", "semi;colon'", strings.Repeat("x", 63), "public"} {
		t.Run(schema, func(t *testing.T) {
			db := pgtest.EmptyParallel(t)
			execute(t, db.Conn(t), "REVOKE CREATE ON SCHEMA public FROM PUBLIC") // who has it before PostgreSQL 15
			o := migrations.WithSchema(schema)
			mustUp(t, db.URL(), o)
			wantVersion(t, db.URL(), migrations.Latest, o)
			c := must.Get(pglock.New(t.Context(), db.Pool(t), pglock.WithSchema(schema)))(t)
			must.Note(t, c.Close(t.Context()))
			mustDown(t, db.URL(), o)
			wantVersion(t, db.URL(), 0, o)
		})
	}
}

func TestImpossibleSchemaNamesAreRefused(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	before := catalog(t, db.Conn(t), false)
	for _, schema := range []string{"", "pg_locks", "a\x00b", "a\xff", "a$$b", strings.Repeat("x", 64)} {
		o := migrations.WithSchema(schema)
		_, _, version := migrations.Version(t.Context(), db.URL(), o)
		for what, err := range map[string]error{
			"Up": migrations.Up(t.Context(), db.URL(), o), "Down": migrations.Down(t.Context(), db.URL(), o),
			"Force": migrations.Force(t.Context(), db.URL(), 1, o), "Version": version,
		} {
			if !errors.Is(err, migrations.ErrInvalid) || !strings.Contains(err.Error(), "schema") ||
				!strings.Contains(err.Error(), "63") {
				t.Errorf("%s of schema %q: %v, want ErrInvalid that names the rule", what, schema, err)
			}
		}
	}
	for _, version := range []int{-1, migrations.Latest + 1} {
		if err := migrations.Force(t.Context(), db.URL(), version); !errors.Is(err, migrations.ErrInvalid) {
			t.Errorf("Force(%d) = %v, want ErrInvalid", version, err)
		}
	}
	if after := catalog(t, db.Conn(t), false); after != before {
		t.Error("a refused call has changed the database")
	}
}

func TestManyProcessesMigrateAnEmptyDatabaseAtOnce(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	all := pgtest.Group(t)
	processes := 10
	if pgtest.EveryTest {
		processes = 20
	}
	for range processes {
		all.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this test itself
			cmd.Env = append(os.Environ(), upVariable+"="+db.URL())
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, said)
			}
		})
	}
	all.Wait()
	wantVersion(t, db.URL(), migrations.Latest)
}

func TestDatabasesOfOneServerMigrateAndUnmigrateAtTheSameTime(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil) // the last Down drops the roles there
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
	names, rounds := []string{"a", "b", "c"}, 6
	all := pgtest.Group(t)
	for _, name := range names {
		execute(t, conn, "CREATE DATABASE "+name)
		u := must.Get(url.Parse(server.URL()))(t)
		u.Path = "/" + name
		all.Go(func() {
			for range rounds {
				if err := migrations.Up(t.Context(), u.String()); err != nil {
					t.Errorf("database %s: Up: %v", name, err)
					return
				}
				if err := migrations.Down(t.Context(), u.String()); err != nil {
					t.Errorf("database %s: Down: %v", name, err)
					return
				}
			}
		})
	}
	all.Wait()
	roles := pgtest.One[int](t, conn, "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'pglock%'")
	if roles != 0 {
		t.Logf("%d roles are left, as two databases let go of them at once", roles)
	}
}

func TestWaitForAnotherMigrationEndsWithItsContext(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	other := db.Conn(t)
	execute(t, other, "SELECT pg_advisory_lock(hashtextextended('pglock migrations pglock', 0))")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := migrations.Up(ctx, db.URL()); !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(began) > 30*time.Second {
		t.Errorf("Up = %v after %v, want the end of its context", err, time.Since(began))
	}
	execute(t, other, "SELECT pg_advisory_unlock_all()")
	wantVersion(t, db.URL(), 0)
	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Errorf("after the other migration: %v", err)
	}
}

func TestUnreachableServerAndBadConnectionStringAreNamed(t *testing.T) {
	t.Parallel()
	for databaseURL, says := range map[string]string{
		"postgres://u:hush-hush@127.0.0.1:1/x?sslmode=disable": "127.0.0.1",
		"postgres://u:hush-hush@127.0.0.1:port/x":              "port",
	} {
		err := migrations.Up(t.Context(), databaseURL)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hush-hush") {
			t.Errorf("%v, want an error that names %q and no password", err, says)
		}
	}
}
