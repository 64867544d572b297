package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// withFiles puts other files in the place of the embedded ones.
func withFiles(t *testing.T, source fs.FS) Option {
	t.Helper()
	names := must.Get(fs.Glob(source, "*.up.sql"))(t)
	return func(c *config) error {
		c.source, c.latest = source, len(names)
		return nil
	}
}

// ladder replaces the real steps by so many small ones. Each makes a table and checks its surroundings; the given SQL
// runs at its end.
func ladder(t *testing.T, height int, extra map[int]string) Option {
	t.Helper()
	source := fstest.MapFS{}
	for n := 1; n <= height; n++ {
		up := fmt.Sprintf(`CREATE TABLE rung%d ();
			CREATE OR REPLACE FUNCTION schema_version() RETURNS int LANGUAGE sql AS 'SELECT %[1]d';
			CREATE OR REPLACE FUNCTION start_client() RETURNS int LANGUAGE sql AS 'SELECT 1';
			%[2]s`, n, extra[n])
		down := fmt.Sprintf("DROP TABLE rung%d; CREATE OR REPLACE FUNCTION schema_version() RETURNS int LANGUAGE sql "+
			"AS 'SELECT %d'", n, n-1)
		if n == 1 {
			down = "DROP TABLE rung1; DROP FUNCTION schema_version(); DROP FUNCTION start_client()"
		}
		source[fmt.Sprintf("%06d_rung.up.sql", n)] = &fstest.MapFile{Data: []byte(up)}
		source[fmt.Sprintf("%06d_rung.down.sql", n)] = &fstest.MapFile{Data: []byte(down)}
	}
	return withFiles(t, source)
}

func mustUp[D Database](t *testing.T, database D, opts ...Option) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := Up(ctx, database, opts...); err != nil {
		t.Fatalf("Up: %v", err)
	}
}

func mustDown[D Database](t *testing.T, database D, opts ...Option) {
	t.Helper()
	if err := Down(t.Context(), database, opts...); err != nil {
		t.Fatalf("Down: %v", err)
	}
}

func mustDo(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func wantVersion(t *testing.T, url string, version int, dirty bool) {
	t.Helper()
	gotVersion, gotDirty, err := Version(t.Context(), url)
	if err != nil || gotVersion != version || gotDirty != dirty {
		t.Errorf("Version = %d, %v, %v; want %d, %v", gotVersion, gotDirty, err, version, dirty)
	}
}

// noted is what another program reads in golang-migrate's table.
func noted(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	var there bool
	var s string
	err := conn.QueryRow(t.Context(), "SELECT to_regclass('pglock.pglock_schema_migrations') IS NOT NULL").Scan(&there)
	if err == nil && !there {
		return "no table"
	}
	if err == nil {
		err = conn.QueryRow(t.Context(),
			`SELECT coalesce(string_agg(version || CASE WHEN dirty THEN ' dirty' ELSE '' END, ', '), 'nothing')
			FROM pglock.pglock_schema_migrations`).Scan(&s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantNoted(t *testing.T, conn *pgx.Conn, want string) {
	t.Helper()
	if got := noted(t, conn); got != want {
		t.Errorf("golang-migrate's table says %q, want %q", got, want)
	}
}

// noteByHand makes golang-migrate's table say this, as a killed program may have left it.
func noteByHand(t *testing.T, conn *pgx.Conn, version int, dirty bool) {
	t.Helper()
	mustDo(t, conn,
		fmt.Sprintf(`CREATE TABLE IF NOT EXISTS pglock.pglock_schema_migrations (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL);
		DELETE FROM pglock.pglock_schema_migrations; INSERT INTO pglock.pglock_schema_migrations VALUES (%d, %v)`,
			version, dirty))
}

// wantStep fails unless err is a StepError between these versions that names its cause.
func wantStep(t *testing.T, err error, from, to int, cause string) {
	t.Helper()
	var step *StepError
	if !errors.As(err, &step) || step.From != from || step.To != to || step.Unknown || step.Schema != "pglock" ||
		!strings.Contains(err.Error(), cause) {
		t.Fatalf("%v, want a StepError from %d to %d with %q", err, from, to, cause)
	}
}

// asUser gives a connection string of a new user.
func asUser(t *testing.T, db *pgtest.DB, suffix string) (address, name string) {
	t.Helper()
	name = db.Name() + suffix
	conn := db.Conn(t)
	mustDo(t, conn, "CREATE ROLE "+pgx.Identifier{name}.Sanitize()+" LOGIN PASSWORD 'secret'")
	after := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if _, err := conn.Exec(after, "SET lock_timeout = '30s'; DROP OWNED BY "+pgx.Identifier{name}.Sanitize()+
			" CASCADE; DROP ROLE "+pgx.Identifier{name}.Sanitize()); err != nil {
			t.Error(err)
		}
	})
	u := must.Get(url.Parse(db.URL()))(t)
	u.User = url.UserPassword(name, "secret")
	return u.String(), name
}
