package migrations_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

const (
	fencingUp   = "000003_fencing.up.sql"
	fencingDown = "000003_fencing.down.sql"
)

// everything is every row that version 2 knows, without what came later.
func everything(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return text(t, conn, `SELECT string_agg(x, E'\n' ORDER BY x) FROM (
		SELECT 'lock ' || (to_jsonb(l) - 'block')::text AS x FROM pglock.locks l
		UNION ALL SELECT 'fence ' || to_jsonb(f)::text FROM pglock.fences f
		UNION ALL SELECT 'event ' || (to_jsonb(e) - 'xact')::text FROM pglock.events e WHERE kind IN ('break', 'takeover', 'stale write')
		UNION ALL SELECT 'spent ' || to_jsonb(s)::text FROM pglock.spent_grants s
		UNION ALL SELECT 'waiter ' || (to_jsonb(w) - 'turns')::text FROM pglock.waiters w
		UNION ALL SELECT 'session ' || to_jsonb(s)::text FROM pglock.sessions s
		UNION ALL SELECT 'installation ' || to_jsonb(i)::text FROM pglock.installation i
		UNION ALL SELECT 'sequence ' || q.last_value || q.is_called FROM pglock.fencing_token_seq q
		UNION ALL SELECT 'tickets ' || q.last_value || q.is_called FROM pglock.ticket_seq q) everything`)
}

// versionThree is a database with rows of every kind that version 3 has, and a table that is not guarded any more.
func versionThree(t *testing.T) (*pgtest.DB, *program, map[string]claim) {
	t.Helper()
	db, p, claims := versionTwo(t)
	apply(t, p.conn, fencingUp)
	execute(t, p.conn, "UPDATE pglock.pglock_schema_migrations SET version = 3")
	c := claims["watched"]
	execute(t, p.conn, fmt.Sprintf(`CREATE TABLE accounts (id int);
		SELECT pglock.guard_table('accounts'); SELECT pglock.unguard_table('accounts');
		SELECT pglock.bypass_guards('because', 'alice'); SELECT pglock.record_incident('not restored', 'r', 'n', 1, 'h', 'because');
		SELECT pglock.once('forever', 'watched', %[1]d, '%[2]s'); SELECT pglock.once('kept', 'watched', %[1]d, '%[2]s', p_of => now(), p_keep => '1 hour')`, c.token, c.id))
	return db, p, claims
}

func TestUpToFencingKeepsEveryRowAndEveryLease(t *testing.T) {
	t.Parallel()
	db, p, claims := versionTwo(t)
	execute(t, p.conn, "UPDATE pglock.pglock_schema_migrations SET version = 2")
	var heir claim
	scan(t, p.conn, []any{&heir.name, &heir.id}, "SELECT name, grant_id FROM pglock.waiters WHERE name = 'ex' ORDER BY ticket LIMIT 1")
	before := everything(t, p.conn)
	for _, what := range []string{"fence ", "waiter ", "session ", "spent ", `"kind": "break"`, `"slot": 2`, `"mode": "limit"`} {
		if !strings.Contains(before, what) {
			t.Fatalf("there is no %s in\n%s", what, before)
		}
	}
	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, db.URL(), migrations.Latest)
	if after := everything(t, p.conn); after != before {
		t.Errorf("rows: %s", firstDifference(after, before))
	}
	if got := p.renewAll(claims["ex"], claims["sh0"], claims["pool1"]); got != "ex renewed, pool1 renewed, sh renewed" && got != "ex renewed, pool renewed, sh renewed" {
		t.Errorf("renewals: %s", got)
	}
	var lk *pgconn.PgError
	if err := p.write(claims["ex"]); !errors.As(err, &lk) || lk.Code != "LK002" {
		t.Errorf("a fence that was passed before: %v, want LK002", err)
	}
	if err := p.write(claims["watched"]); err != nil {
		t.Errorf("a fence that was not: %v", err)
	}
	if !p.release(claims["ex"]) {
		t.Error("not released")
	}
	if holder, token := holderOf(t, p.conn, heir); holder != "waiter 0" || token <= claims["ex"].token {
		t.Errorf("released: %q holds it with token %d", holder, token)
	}
}

func TestDownFromFencingIsExactlyVersionTwoAndKeepsItsRows(t *testing.T) {
	t.Parallel()
	_, fresh, _ := versionTwo(t)
	_, p, _ := versionThree(t)
	three, before := structure(t, p.conn), everything(t, p.conn)
	// From the latest version, step by step.
	for _, name := range steps(t, "up")[3:] {
		apply(t, p.conn, name)
	}
	for _, name := range steps(t, "down")[:migrations.Latest-2] {
		apply(t, p.conn, name)
	}
	got, want := structure(t, p.conn), structure(t, fresh.conn)
	if got != want {
		t.Errorf("after the way down: %s", firstDifference(got, want))
	}
	if after := everything(t, p.conn); after != before {
		t.Errorf("rows: %s", firstDifference(after, before))
	}
	if n := text(t, p.conn, "SELECT count(*)::text FROM pglock.events WHERE kind NOT IN ('break', 'takeover', 'stale write')"); n != "0" {
		t.Errorf("%s events that version 2 does not know", n)
	}
	apply(t, p.conn, fencingUp)
	if again := structure(t, p.conn); again != three {
		t.Errorf("up again: %s", firstDifference(again, three))
	}
	if three == want {
		t.Error("this test does not see what version 3 adds")
	}
	if after := everything(t, p.conn); after != before {
		t.Errorf("rows, up again: %s", firstDifference(after, before))
	}
}

func TestDownIsRefusedWhileATableIsGuardedAndChangesNothing(t *testing.T) {
	t.Parallel()
	for what, sql := range map[string]string{
		"a table":              `CREATE TABLE t (id int); SELECT %s.guard_table('t')`,
		"a table with keys":    `CREATE TABLE t (id int); SELECT %s.guard_table('t', NULL, 'id')`,
		"partitions":           `CREATE TABLE t (id int) PARTITION BY LIST (id); CREATE TABLE t1 PARTITION OF t DEFAULT; SELECT %s.guard_table('t')`,
		"a detached partition": `CREATE TABLE p (id int) PARTITION BY LIST (id); CREATE TABLE t PARTITION OF p DEFAULT; SELECT %[1]s.guard_table('p'); ALTER TABLE p DETACH PARTITION t; SELECT %[1]s.unguard_table('p')`,
		"a disabled guard":     `CREATE TABLE t (id int); SELECT %s.guard_table('t'); ALTER TABLE t DISABLE TRIGGER ALL`,
		"a trigger by hand":    `CREATE TABLE t (id int); CREATE TRIGGER mine AFTER INSERT ON t EXECUTE FUNCTION %s.guard_statement()`,
	} {
		for _, schema := range []string{"pglock", `My "odd" Schema`} {
			t.Run(what+"/"+schema, func(t *testing.T) {
				t.Parallel()
				db := pgtest.EmptyDatabase(t)
				o := migrations.WithSchema(schema)
				if err := migrations.Up(t.Context(), db.URL(), o); err != nil {
					t.Fatal(err)
				}
				conn := db.Conn(t)
				execute(t, conn, fmt.Sprintf(sql, pgx.Identifier{schema}.Sanitize()))
				before := catalog(t, conn, false)
				for range 2 {
					err := migrations.Down(t.Context(), db.URL(), o)
					var dirty *migrations.DirtyError
					if !errors.Is(err, migrations.ErrGuarded) || errors.As(err, &dirty) || !strings.Contains(err.Error(), "public.t") || !strings.Contains(err.Error(), "pglock-admin guard drop") {
						t.Fatalf("Down: %v, want ErrGuarded that names the table and the way out", err)
					}
					wantVersion(t, db.URL(), migrations.Latest, o)
				}
				down, err := fs.ReadFile(migrations.Files(), fencingDown)
				if err != nil {
					t.Fatal(err)
				}
				var refused *pgconn.PgError
				err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+pgx.Identifier{schema}.Sanitize()+", pg_temp;"+string(down), pgx.QueryExecModeSimpleProtocol)
					return err
				})
				if !errors.As(err, &refused) || refused.Code != "2BP01" || !strings.Contains(refused.Message, "public.t") || !strings.Contains(refused.Hint, "guard drop") {
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
			t.Parallel()
			db, p, _ := versionThree(t)
			look := db.Conn(t)
			tx, err := db.Conn(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context()) //nolint:errcheck // after a commit
			if _, err := tx.Exec(t.Context(), "SELECT pglock.guard_table('accounts')"); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- tryApply(t, p.conn, fencingDown) }()
			eventually(t, "the way down to wait", func() bool {
				return text(t, look, "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'", p.conn.PgConn().PID()) == "1"
			})
			if commits {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			var refused *pgconn.PgError
			err = <-done
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
		content, err := fs.ReadFile(migrations.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(content), "\n") {
			if strings.ContainsFunc(line, func(r rune) bool { return r > 126 }) {
				t.Errorf("%s, line %d: %s", name, i+1, line)
			}
		}
	}
}

// Other tools run a file in a savepoint, or, as psql with ON_ERROR_ROLLBACK, each of its statements: what it makes is the same,
// down to the rights.
func TestFilesDoTheSameInsideASavepoint(t *testing.T) {
	t.Parallel()
	make := func(how func(tx pgx.Tx, content string) error) string {
		db := pgtest.EmptyDatabase(t)
		conn := db.Conn(t)
		execute(t, conn, "CREATE SCHEMA pglock")
		for _, name := range steps(t, "up") {
			content, err := fs.ReadFile(migrations.Files(), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = pglock, pg_temp; SELECT pg_current_xact_id()"); err != nil {
					return err
				}
				return how(tx, string(content))
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
