package docs_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

var blocksOfSQL = regexp.MustCompile("(?ms)^ *```sql\n(.*?)^ *```$")

// Operators copy this SQL at three in the morning. What is for psql alone, or has a gap to fill, is left out.
func TestTheSQLForOperatorsRuns(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"operations.md", "connections.md", "failover.md", "guards.md", "alerts.md"} {
		ran := 0
		for i, block := range blocksOfSQL.FindAllStringSubmatch(read(t, "docs", page), -1) {
			if strings.ContainsAny(block[1], `…\`) {
				continue
			}
			ran++
			t.Run(fmt.Sprint(page, i), func(t *testing.T) {
				t.Parallel()
				conn := pgtest.Database(t).Conn(t)
				script := "CREATE TABLE public.accounts (id int);" + comments.ReplaceAllString(block[1], "")
				for s := range strings.SplitAfterSeq(strings.TrimSpace(script), ";") {
					if _, err := conn.Exec(t.Context(), s, pgx.QueryExecModeSimpleProtocol); err != nil {
						t.Errorf("%s: %v", s, err)
					}
				}
			})
		}
		if ran == 0 {
			t.Errorf("%s: no SQL was found", page)
		}
	}
}

var comments = regexp.MustCompile(`--.*`)

// Whoever is on the list is ended. So it must not show those who keep up the application alone, or another database.
func TestTheSQLOfAlertsShowsWhoBlocksPglockAndNobodyElse(t *testing.T) {
	t.Parallel()
	db, elsewhere := pgtest.Database(t), pgtest.Database(t)
	looks := db.Conn(t)
	execute(t, looks, `CREATE TABLE public.accounts (id int); INSERT INTO public.accounts VALUES (1), (2)`)
	for _, conn := range []*pgx.Conn{looks, elsewhere.Conn(t)} {
		execute(t, conn, `SELECT pglock.acquire_lease('orders', gen_random_uuid(), gen_random_uuid(), 'me', '1 h')`)
	}
	const mine, yours = `SELECT FROM public.accounts WHERE id = 1 FOR UPDATE`,
		`SELECT FROM public.accounts WHERE id = 2 FOR UPDATE`
	const lock = `SELECT FROM pglock.locks WHERE name = 'orders' FOR UPDATE`
	waits := func(conn *pgx.Conn, statement string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		t.Cleanup(func() { cancel(); <-ended })
		go func() {
			defer close(ended)
			_, _ = conn.Exec(ctx, statement)
		}()
		pgtest.Eventually(t, statement+" waits", func() (so bool) {
			err := looks.QueryRow(t.Context(), `SELECT cardinality(pg_blocking_pids($1)) = 1`,
				conn.PgConn().PID()).Scan(&so)
			return err == nil && so
		})
	}
	begun := func(db *pgtest.DB, statement string) *pgx.Conn {
		t.Helper()
		conn := db.Conn(t)
		execute(t, conn, `BEGIN; `+statement)
		return conn
	}
	first, second := begun(db, mine), begun(db, lock)
	waits(second, mine)
	waits(begun(db, ``), lock)
	begun(db, yours)
	waits(begun(db, ``), yours)
	begun(elsewhere, lock)
	waits(begun(elsewhere, ``), lock)

	query := blocksOfSQL.FindStringSubmatch(read(t, "docs", "alerts.md"))[1]
	rows := must.Get(looks.Query(t.Context(), query))(t)
	got := must.Get(pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		blocker, err := pgx.RowToMap(row)
		return fmt.Sprint("process ", blocker["pid"], " waits for ", blocker["waits_for"]), err
	}))(t)
	head, behind := first.PgConn().PID(), second.PgConn().PID()
	want := []string{fmt.Sprintf("process %d waits for []", head),
		fmt.Sprintf("process %d waits for [%d]", behind, head)}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The lock that the other writers take may have another name than the resource.
func TestThePageOfGuardsWritesByHandUnderAnyLock(t *testing.T) {
	t.Parallel()
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skipf("psql is not in PATH: %v", err)
	}
	_, rest, _ := strings.Cut(read(t, "docs", "guards.md"), "**Write tonight, by hand.**")
	script := blocksOfSQL.FindStringSubmatch(rest)[1]
	for _, lock := range []string{"accounts/42", "the ledger's"} {
		t.Run(lock, func(t *testing.T) {
			db := pgtest.Parallel(t)
			conn := db.Conn(t)
			execute(t, conn, `CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint);
				INSERT INTO accounts VALUES (42, 0)`)
			must.Do(t, fencedstore.GuardTable(t.Context(), conn, "accounts", fencedstore.WithTableKey("id")))
			changed := strings.Replace(script, "accounts/42", strings.ReplaceAll(lock, "'", "''"), 1)
			file := filepath.Join(t.TempDir(), "by_hand.sql")
			must.Do(t, os.WriteFile(file, []byte(changed), 0o600))
			//nolint:gosec // psql with the page's own script
			said, err := exec.CommandContext(t.Context(), psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", db.URL(),
				"-f", file).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, said)
			}
			var balance int
			var by string
			var free bool
			err = conn.QueryRow(t.Context(), `SELECT balance, f.lock_name, l.expires_at = '-infinity'
				FROM accounts, pglock.fences f JOIN pglock.locks l ON l.name = f.lock_name
				WHERE f.resource = 'accounts/42'`).Scan(&balance, &by, &free)
			if err != nil || balance != 100 || by != lock || !free {
				t.Errorf("balance %d, written under lock %q, which is free: %v; %v", balance, by, free, err)
			}
		})
	}
}

// A schema that psql has made goes by psql.
func TestThePageOfInstallMakesAndRemovesTheSchemaWithPsql(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skipf("psql is not in PATH: %v", err)
	}
	db := pgtest.EmptyDatabase(t)
	conn := db.Conn(t)
	commands := regexp.MustCompile(`(?m)^    psql -X(.*\\\n)*.*`).FindAllString(read(t, "docs", "install.md"), -1)
	for i, command := range commands {
		run := exec.CommandContext(t.Context(), "sh", "-c", command)
		run.Dir, run.Env = root, append(os.Environ(), "DATABASE_URL="+db.URL())
		if said, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s\n%v: %s", command, err, said)
		}
		var there bool
		err := conn.QueryRow(t.Context(), `SELECT to_regnamespace('pglock') IS NOT NULL`).Scan(&there)
		if err != nil || there != (i == 0) {
			t.Errorf("after\n%s\nthe schema is there: %v, %v", command, there, err)
		}
	}
	if len(commands) != 2 {
		t.Errorf("the page has the commands %q, want one to make the schema and one to remove it", commands)
	}
}

func execute(t *testing.T, conn *pgx.Conn, script string) {
	t.Helper()
	must.Get(conn.Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol))(t)
}
