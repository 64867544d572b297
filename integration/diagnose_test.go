package integration

import (
	"testing"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// A transaction that has written and sits idle has no snapshot, but keeps row versions like one that reads.
func TestDoctorSeesATransactionThatHasWrittenAndIsIdle(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := migrated(t, nil)
	look, writer := newPeer(t, server.URL()), newPeer(t, server.URL())
	writer.exec(t, `CREATE TABLE ledger (n int)`)
	writer.exec(t, `BEGIN`)
	writer.exec(t, `INSERT INTO ledger VALUES (1)`)
	pgtest.Eventually(t, "the transaction to be two seconds old, and without a snapshot", func() bool {
		return one[bool](t, look, `SELECT xact_start < clock_timestamp() - interval '2 s' AND backend_xmin IS NULL FROM pg_stat_activity WHERE pid = $1`, writer.PgConn().PID())
	})
	findings, err := lockadmin.Diagnose(t.Context(), newPool(t, server.URL()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Item == "oldest transaction" {
			if f.Value < "00:00:02" {
				t.Errorf("the oldest transaction is %s old, want two seconds or more", f.Value)
			}
			return
		}
	}
	t.Error("no word of the oldest transaction")
}
