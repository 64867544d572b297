package migrations_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// psql runs the plain files as a team without our tools would, and gives what it says.
func psql(t *testing.T, url string, args ...string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("psql")
	if err != nil {
		t.Skipf("psql is not in PATH: %v", err)
	}
	all := append([]string{"-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", url}, args...)
	//nolint:gosec // psql with the test's own files
	said, err := exec.CommandContext(t.Context(), program, all...).CombinedOutput()
	return string(said), err
}

func plainFile(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, []byte(contents(t, name)), 0o600))
	return path
}

func TestPlainFilesWorkWithPsqlAlone(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"pglock", `My "odd" Schema`} {
		t.Run(schema, func(t *testing.T) {
			db := pgtest.EmptyParallel(t)
			conn := db.Conn(t)
			before := catalog(t, conn, false)
			quoted := pgx.Identifier{schema}.Sanitize()
			path := "SET search_path = " + quoted + ", pg_temp"
			if said, err := psql(t, db.URL(), "-c", "CREATE SCHEMA "+quoted); err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			for _, name := range steps(t, "up") {
				if said, err := psql(t, db.URL(), "-c", path, "-f", plainFile(t, name)); err != nil {
					t.Fatalf("%s: %v: %s", name, err, said)
				}
			}
			c, err := pglock.New(t.Context(), db.Pool(t), pglock.WithSchema(schema))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Do(t.Context(), "report", func(context.Context, *pglock.Lease) error {
				return nil
			}); err != nil {
				t.Error(err)
			}
			must.Note(t, c.Close(t.Context()))
			o := migrations.WithSchema(schema)
			wantVersion(t, db.URL(), migrations.Latest, o)
			if err := migrations.Up(t.Context(), db.URL(), o); err != nil {
				t.Errorf("Up of a schema made by psql, which has the latest version: %v", err)
			}
			if err := migrations.Down(t.Context(), db.URL(), o); err == nil ||
				!strings.Contains(err.Error(), "another migration tool") {
				t.Errorf("Down of a schema made by psql: %v, want a refusal that says so", err)
			}
			for _, name := range steps(t, "down") {
				if said, err := psql(t, db.URL(), "-c", path, "-f", plainFile(t, name)); err != nil {
					t.Fatalf("%s: %v: %s", name, err, said)
				}
			}
			if said, err := psql(t, db.URL(), "-c", "DROP SCHEMA "+quoted); err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			if after := catalog(t, conn, false); after != before {
				t.Errorf("before:\n%s\n\nafter:\n%s", before, after)
			}
		})
	}
}

// Functions keep the path under which they were made: each file that makes some refuses any other.
func TestPlainFileRefusesAWrongSearchPath(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE SCHEMA pglock")
	for _, name := range []string{"000001_pglock.up.sql", downFile, "000001_pglock.up.sql"} {
		before := catalog(t, conn, false)
		file := plainFile(t, name)
		for _, path := range []string{"pglock", "pglock, public", "pglock, public, pg_temp", "pg_temp, pglock",
			"nowhere, pg_temp", "''", "pglock, pg_catalog, pg_temp"} {
			said, err := psql(t, db.URL(), "-c", "SET search_path = "+path, "-f", file)
			if err == nil || !strings.Contains(said, "search_path is") ||
				!strings.Contains(said, "followed by pg_temp") {
				t.Errorf("%s with search_path %s: %v, %.200s; want a refusal that names the rule", name, path, err,
					said)
			}
			if after := catalog(t, conn, false); after != before {
				t.Fatalf("%s with search_path %s has changed the database: %s", name, path,
					firstDifference(after, before))
			}
		}
		if said, err := psql(t, db.URL(), "-c", "SET search_path = pglock, pg_temp", "-f", file); err != nil {
			t.Fatalf("%s: %v: %s", name, err, said)
		}
	}
}

func TestUpWithoutCREATEROLELeavesNothingAndSaysWhoCan(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil) // the roles must not be there
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
	execute(t, conn, "CREATE ROLE app LOGIN PASSWORD 'x'")
	execute(t, conn, "CREATE DATABASE app OWNER app")
	config := conn.Config()
	app := fmt.Sprintf("postgres://app:x@/app?host=%s&port=%d&sslmode=disable", config.Host, config.Port)
	inside, err := pgx.Connect(t.Context(), app)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close(t.Context()) //nolint:errcheck // nothing is lost
	for range 2 {                   // the first leaves no mark, and nothing else
		err = migrations.Up(t.Context(), app)
		for _, says := range []string{"user app cannot create the roles pglock_user and pglock_admin",
			"CREATE ROLE pglock_user NOLOGIN;"} {
			if err == nil || !strings.Contains(err.Error(), says) || len(err.Error()) > 1000 {
				t.Errorf("%v, want a short error that says %q", err, says)
			}
		}
		var left bool
		if err := inside.QueryRow(t.Context(),
			"SELECT to_regnamespace('pglock') IS NOT NULL").Scan(&left); err != nil || left {
			t.Errorf("a schema is left: %v, %v", left, err)
		}
	}
	execute(t, conn, "CREATE ROLE pglock_user NOLOGIN")
	err = migrations.Up(t.Context(), app)
	if err == nil || !strings.Contains(err.Error(), "run: CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user;") {
		t.Errorf("with one of the roles there: %v, want the statement for the other alone", err)
	}
	execute(t, conn, "CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user")
	if err := migrations.Up(t.Context(), app); err != nil {
		t.Errorf("with the roles there: %v", err)
	}
	wantVersion(t, app, migrations.Latest)
	if err := migrations.Down(t.Context(), app); err != nil {
		t.Errorf("Down by a user who cannot drop the roles: %v", err)
	}
}
