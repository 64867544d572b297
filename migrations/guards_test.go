package migrations_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

const downFile = "000001_pglock.down.sql"

func TestDownIsRefusedWhileATableIsGuardedAndChangesNothing(t *testing.T) {
	t.Parallel()
	for what, sql := range map[string]string{
		"a table":              `CREATE TABLE t (id int); SELECT %s.guard_table('t')`,
		"a table with keys":    `CREATE TABLE t (id int); SELECT %s.guard_table('t', NULL, 'id')`,
		"partitions":           `CREATE TABLE t (id int) PARTITION BY LIST (id); CREATE TABLE t1 PARTITION OF t DEFAULT; SELECT %s.guard_table('t')`,
		"a detached partition": `CREATE TABLE p (id int) PARTITION BY LIST (id); CREATE TABLE t PARTITION OF p DEFAULT; SELECT %[1]s.guard_table('p'); ALTER TABLE p DETACH PARTITION t; SELECT %[1]s.unguard_table('p')`,
		"a disabled guard":     `CREATE TABLE t (id int); SELECT %s.guard_table('t'); ALTER TABLE t DISABLE TRIGGER ALL`,
		"a trigger by hand":    `CREATE TABLE t (id int); CREATE TRIGGER mine AFTER INSERT ON t EXECUTE FUNCTION %s.guard_write()`,
	} {
		for _, schema := range []string{"pglock", `My "odd" Schema`} {
			if schema != "pglock" && what != "a detached partition" { // one with the most SQL is enough
				continue
			}
			t.Run(what+"/"+schema, func(t *testing.T) {
				db := pgtest.EmptyParallel(t)
				o := migrations.WithSchema(schema)
				mustUp(t, db.URL(), o)
				conn := db.Conn(t)
				execute(t, conn, fmt.Sprintf(sql, pgx.Identifier{schema}.Sanitize()))
				before := catalog(t, conn, false)
				for range 2 {
					err := migrations.Down(t.Context(), db.URL(), o)
					var dirty *migrations.DirtyError
					if !errors.Is(err, migrations.ErrGuarded) || errors.As(err, &dirty) ||
						!strings.Contains(err.Error(), "public.t") ||
						!strings.Contains(err.Error(), "pglock-admin guard drop") {
						t.Fatalf("Down: %v, want ErrGuarded that names the table and the way out", err)
					}
					wantVersion(t, db.URL(), migrations.Latest, o)
				}
				var refused *pgconn.PgError
				err := tryApply(t, conn, schema, downFile)
				if !errors.As(err, &refused) || refused.Code != "2BP01" ||
					!strings.Contains(refused.Message, "public.t") || !strings.Contains(refused.Hint, "guard drop") {
					t.Errorf("the plain file: %v, want 2BP01 that names the table and the way out", err)
				}
				if after := catalog(t, conn, false); after != before {
					t.Errorf("a refused way down has changed: %s", firstDifference(after, before))
				}
				if what == "a trigger by hand" {
					execute(t, conn, "DROP TRIGGER mine ON t")
				} else {
					execute(t, conn, "SELECT "+pgx.Identifier{schema}.Sanitize()+".unguard_table('t')")
				}
				if err := migrations.Down(t.Context(), db.URL(), o); err != nil {
					t.Errorf("without the guard: %v", err)
				}
				wantVersion(t, db.URL(), 0, o)
			})
		}
	}
}

// A guard that is made while the way down is under way: either it is seen, and the way down refused, or it fails.
func TestDownMeetsAGuardThatIsBeingMade(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprint("commits ", commits), func(t *testing.T) {
			db := pgtest.EmptyParallel(t)
			mustUp(t, db.URL())
			look, goes := db.Conn(t), db.Conn(t)
			execute(t, look, "CREATE TABLE accounts (id int)")
			tx := must.Get(db.Conn(t).Begin(t.Context()))(t)
			defer tx.Rollback(t.Context()) //nolint:errcheck // after a commit
			must.Get(tx.Exec(t.Context(), "SELECT pglock.guard_table('accounts')"))(t)
			done := must.Go(func() error { return tryApply(t, goes, "pglock", downFile) })
			pgtest.Eventually(t, "the way down to wait", func() bool {
				return text(t, look, "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1 AND wait_event_type "+
					"= 'Lock'", goes.PgConn().PID()) == "1"
			})
			end := tx.Rollback
			if commits {
				end = tx.Commit
			}
			must.Do(t, end(t.Context()))
			var refused *pgconn.PgError
			err := <-done
			if commits != (errors.As(err, &refused) && refused.Code == "2BP01") || !commits && err != nil {
				t.Errorf("the way down: %v", err)
			}
			_, err = look.Exec(t.Context(), "INSERT INTO accounts VALUES (1)")
			if commits != (errors.As(err, &refused) && refused.Code == "LK011") || !commits && err != nil {
				t.Errorf("a write without a fence: %v", err)
			}
		})
	}
}

// A server converts what it is sent to the database's encoding, comments too: only ASCII is in all of them.
func TestFilesAreASCIISoThatADatabaseOfAnyEncodingTakesThem(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(migrations.Files(), "*.sql")
	if err != nil || len(names) != 2*migrations.Latest {
		t.Fatal(names, err)
	}
	for _, name := range names {
		content := contents(t, name)
		for i, line := range strings.Split(content, "\n") {
			if strings.ContainsFunc(line, func(r rune) bool { return r > 126 }) {
				t.Errorf("%s, line %d: %s", name, i+1, line)
			}
		}
	}
}

// Other tools run a file in a savepoint, or, as psql with ON_ERROR_ROLLBACK, each of its statements: what it makes is
// the same, down to the rights.
func TestFilesDoTheSameInsideASavepoint(t *testing.T) {
	t.Parallel()
	make := func(how func(tx pgx.Tx, content string) error) string {
		db := pgtest.EmptyDatabase(t)
		conn := db.Conn(t)
		execute(t, conn, "CREATE SCHEMA pglock")
		for _, name := range steps(t, "up") {
			content := contents(t, name)
			if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(),
					"SET LOCAL search_path = pglock, pg_temp; SELECT pg_current_xact_id()"); err != nil {
					return err
				}
				return how(tx, content)
			}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		return structure(t, conn)
	}
	want := make(func(tx pgx.Tx, content string) error {
		_, err := tx.Exec(t.Context(), content, pgx.QueryExecModeSimpleProtocol)
		return err
	})
	got := make(func(tx pgx.Tx, content string) error {
		_, err := tx.Exec(t.Context(), "SAVEPOINT s;"+content+"; RELEASE s", pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if got != want {
		t.Errorf("in a savepoint: %s", firstDifference(got, want))
	}
}
