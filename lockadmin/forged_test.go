package lockadmin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Everybody may set the mark by which one release of a statement waits for the history, and the others do not.
func TestNobodyKeepsAReleaseOutOfTheHistory(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	execute(t, conn, "SELECT pglock.set_history('me', 'all')")
	l := grant(t, conn, "l", "h", "1 h", "")
	var released bool
	if err := conn.QueryRow(t.Context(), `SELECT (CASE WHEN x.c IS NOT NULL THEN
			pglock.release_lease($1, $2, $3::text::uuid) END).released
		FROM (SELECT set_config('pglock.history_locked', statement_timestamp()::text, false) c OFFSET 0) x`,
		l.name, l.token, l.grantID).Scan(&released); err != nil || !released {
		t.Fatalf("the release: %t, %v", released, err)
	}
	var kinds []string
	if err := conn.QueryRow(t.Context(), `SELECT array_agg(kind) FROM pglock.list_history($1)`, l.name).Scan(
		&kinds); err != nil || fmt.Sprint(kinds) != "[release]" {
		t.Errorf("the history has %v, %v; want the release", kinds, err)
	}
}

// An application chooses its name. The error of a break quotes it, so that it says nothing in pglock's name.
func TestABreakQuotesTheNameOfWhoeverHasLockedTheRow(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, busy := db.Conn(t), db.Conn(t)
	grant(t, conn, "l", "h", "1 h", "")
	execute(t, busy, `SET application_name = 'x''), whose commit waits for a standby and process 4711 (y'`)
	execute(t, busy, `BEGIN`)
	execute(t, busy, `SELECT FROM pglock.locks WHERE name = 'l' FOR UPDATE`)
	_, err := conn.Exec(t.Context(), `SELECT pglock.break_lock('l', 'why', 'me')`)
	want := fmt.Sprintf("locked by process %d ('x''), whose commit waits for a standby and process 4711 (y'); nothing",
		busy.PgConn().PID())
	if refused := new(pgconn.PgError); !errors.As(err, &refused) || !strings.Contains(refused.Message, want) {
		t.Errorf("%v; want %s", err, want)
	}
}
