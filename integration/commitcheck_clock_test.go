package integration

import (
	"context"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Whoever has locked the row of a lease and leaves it as it was makes the check of its holder wait. The lease may end
// meanwhile: then nothing commits, though it was held when the check began.
func TestI4_Trap3_A5_TheChecksReadTheClockAfterTheyHaveWaitedForTheRow(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	for check, sql := range map[string]string{
		"inside COMMIT": `COMMIT`,
		"set immediate": `SET CONSTRAINTS pglock.fence_commit IMMEDIATE`,
		"seal":          `SELECT pglock.seal(ARRAY[$1])`,
	} {
		for _, level := range fewLevels() {
			t.Run(check+"/"+string(level), func(t *testing.T) {
				t.Parallel() // it is waiting for leases to end
				for deadline := time.Now().Add(patience); ; {
					f := beginFenced(t, db.URL(), level, time.Second)
					other := newPeer(t, db.URL())
					other.exec(t, `BEGIN`)
					other.exec(t, `SELECT FROM pglock.locks WHERE name = $1 FOR UPDATE`, f.g.name)
					var args []any
					if check == "seal" {
						args = []any{f.g.name}
					}
					done := must.Go(func() error { _, err := f.Exec(context.Background(), sql, args...); return err })
					f.awaitBlocked(t, f.look)
					inTime := one[bool](t, f.look, `SELECT clock_timestamp() < $1`, f.ends)
					awaitExpiry(t, f.look, f.g.name)
					other.exec(t, `ROLLBACK`)
					if err := <-done; state(err) != "LK001" {
						t.Fatalf("I4: the lease ended while the check waited for its row, and the answer is %v; want "+
							"LK001", err)
					}
					f.exec(t, `ROLLBACK`)
					wantCount(t, f.look, 0, "I4: %d rows were committed, want none",
						`SELECT count(*) FROM ledger WHERE token = $1`, f.g.token)
					if inTime {
						return // else it shows nothing: the machine was busy, and the check came too late anyway
					} else if time.Now().After(deadline) {
						t.Fatal("the check never began before the lease had ended")
					}
				}
			})
		}
	}
}
