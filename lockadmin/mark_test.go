package lockadmin_test

import (
	"testing"

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
