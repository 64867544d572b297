package lockadmin_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

func TestMarkOfAConnectionThatFailsLeavesNoLock(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, other := db.Conn(t), db.Conn(t)
	const mark = "SELECT pglock.mark_connection('00000000-0000-0000-0000-0000000000a1', pg_backend_pid(), 'h', 'v1')"
	locks := func(when string, want int) {
		t.Helper()
		var got int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = "+
			"pg_backend_pid()").Scan(&got); err != nil || got != want {
			t.Errorf("%s: %d locks, %v; want %d", when, got, err, want)
		}
	}
	for _, before := range []int{0, 1} {
		execute(t, other, "BEGIN; LOCK TABLE pglock.sessions IN ACCESS EXCLUSIVE MODE")
		execute(t, conn, "SET lock_timeout = '20ms'")
		for range 3 {
			if _, err := conn.Exec(t.Context(), mark); err == nil {
				t.Fatal("the table is locked, and the connection is marked")
			}
		}
		locks("calls have failed", before)
		execute(t, other, "ROLLBACK")
		execute(t, conn, "RESET lock_timeout")
		execute(t, conn, mark)
		locks("marked", 1)
	}
}

// A session's row is shown to everybody, and stays as long as the session says that it may hold.
func TestAMarkIsBoundedWithoutAVersionToo(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	for _, more := range []string{
		"p_holder => repeat('x', 257)", "p_holder => ''", "p_holds => '25 h'", "p_holds => '100 years'",
		"p_names => array_fill('l'::text, ARRAY[21])", "p_version => ''", "p_version => 'v1'",
		"p_version => 'v1', p_holder => ''",
	} {
		refused := new(pgconn.PgError)
		_, err := conn.Exec(t.Context(), "SELECT pglock.mark_connection(gen_random_uuid(), pg_backend_pid(), "+more+")")
		argument, _, _ := strings.Cut(strings.TrimPrefix(more[strings.LastIndex(more, "p_"):], "p_"), " ")
		if more == "p_version => 'v1'" {
			argument = "holder"
		}
		if !errors.As(err, &refused) || refused.Code != "22023" ||
			!strings.HasPrefix(refused.Message, argument+" is ") {
			t.Errorf("%s: %v; want 22023 for its %s", more, err, argument)
		}
	}
	var rows int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pglock.sessions").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d sessions, %v; want none", rows, err)
	}
	execute(t, conn, "SELECT pglock.mark_connection(gen_random_uuid(), pg_backend_pid(), p_holder => 'h')")
}
