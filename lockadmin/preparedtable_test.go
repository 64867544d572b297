package lockadmin_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
)

// A prepared transaction has passed a fence, and somebody waits behind it for the whole table: the transaction is
// named, with the commands that end it. Others, which have not locked that table, are not. A break that such a
// transaction refuses names both commands, too: both halves must end alike.
func TestWhoeverWantsAWholeTableWaitsForAPreparedTransactionByName(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, map[string]string{"max_prepared_transactions": "5"})
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	pool := must.Get(pgxpool.New(t.Context(), server.URL()))(t)
	defer pool.Close()
	admin := newAdmin(t, pool)
	connect := func() *pgx.Conn {
		t.Helper()
		return must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	}
	conn := connect()
	defer conn.Close(t.Context())
	for _, sql := range []string{
		`SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')`,
		`BEGIN`, `CREATE TABLE elsewhere (id int)`, `PREPARE TRANSACTION 'elsewhere'`,
		`BEGIN`, `SELECT pglock.fence(l.name, l.token, l.grant_id) FROM pglock.locks l WHERE l.name = 'report'`,
		`PREPARE TRANSACTION 'it''s half'`,
	} {
		execute(t, conn, sql)
	}
	wants := connect()
	execute(t, wants, "BEGIN")
	pid := wants.PgConn().PID()
	wg := pgtest.Group(t)
	wg.Go(func() {
		_, _ = wants.Exec(t.Context(), "LOCK TABLE pglock.locks") // it ends with the connection
		_ = wants.Close(t.Context())
	})
	pgtest.Eventually(t, "it waits", func() bool {
		var waits bool
		err := conn.QueryRow(t.Context(), "SELECT pg_blocking_pids($1) = '{0}'", pid).Scan(&waits)
		return err == nil && waits
	})
	e := must.Get(admin.Explain(t.Context(), "report"))(t)
	v := e.Verdicts[0]
	if v.Kind != "table" || !strings.HasSuffix(v.Text, "It waits for prepared transaction it's half.") {
		t.Errorf("%s", v.Text)
	}
	var commands []string
	for _, s := range v.Steps {
		if s.Command != "" {
			commands = append(commands, s.Command)
		}
	}
	if want := []string{fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid),
		"SELECT gid, owner, database, prepared FROM pg_prepared_xacts ORDER BY prepared",
		"COMMIT PREPARED 'it''s half'", "ROLLBACK PREPARED 'it''s half'"}; !slices.Equal(commands, want) {
		t.Errorf("%q, want %q", commands, want)
	}
	blocker := slices.IndexFunc(e.Processes, func(b lockadmin.Backend) bool { return b.Prepared == "it's half" })
	if len(e.Processes) != 2 || e.Processes[0].BlockedByPrepared != "it's half" || blocker != 1 ||
		e.Processes[1].User == "" || !e.Processes[1].MayEnd || e.Processes[1].Transaction <= 0 {
		t.Errorf("%+v", e.Processes)
	}
	execute(t, conn, "ROLLBACK PREPARED 'elsewhere'")
	execute(t, conn, v.Steps[len(v.Steps)-1].Command)
	pgtest.Eventually(t, "it goes on", func() bool {
		var waits bool
		err := conn.QueryRow(t.Context(), "SELECT pg_blocking_pids($1) <> '{}'", pid).Scan(&waits)
		return err == nil && !waits
	})
	for _, sql := range []string{"BEGIN", "SELECT FROM pglock.locks FOR UPDATE", "PREPARE TRANSACTION 'row'"} {
		execute(t, conn, sql)
	}
	_, err := admin.Break(t.Context(), "report", "test", lockadmin.BreakOptions{})
	var refused *pgconn.PgError
	if want := "COMMIT PREPARED 'row' or ROLLBACK PREPARED 'row'"; !errors.As(err, &refused) ||
		!strings.Contains(refused.Hint, want) {
		t.Errorf("%v, want the hint %s", err, want)
	}
}
