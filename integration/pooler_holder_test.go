package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// A process that clients share belongs to none of them: the heartbeat's is not told, and nothing is left in its
// session. An open transaction has a process for itself, as long as it lasts.
func TestI20_HolderBehindAPoolerIsToldByItsOpenTransactionAlone(t *testing.T) {
	t.Parallel()
	for _, mode := range execModes {
		t.Run(mode, func(t *testing.T) {
			db := pgtest.Parallel(t)
			look := newPeer(t, db.URL())
			p := newPooler(t, db)
			c := must.Get(pglock.Open(t.Context(), p.url(mode)))(t)
			defer c.Close(context.WithoutCancel(t.Context()))
			lease := must.Get(c.TryAcquire(t.Context(), "report", pglock.WithTTL(6*time.Second)))(t)
			before := lease.Deadline()
			pgtest.Eventually(t, "the lease to be renewed through the pooler", func() bool {
				return lease.Deadline().After(before.Add(500 * time.Millisecond))
			})
			admin := newAdmin(t, newPool(t, db.URL()))
			wantBackends := func(want ...lockadmin.Backend) {
				t.Helper()
				all, err := admin.Backends(t.Context(), "report")
				if err != nil || len(all) != len(want) {
					t.Fatalf("%+v, %v; want %+v", all, err, want)
				}
				for i, b := range all {
					if b.Use != want[i].Use || b.PID != want[i].PID || b.Resource != want[i].Resource {
						t.Errorf("%+v, want %+v", b, want[i])
					}
				}
			}
			wantBackends()
			info := must.Get(admin.Get(t.Context(), "report"))(t)
			if lives, err := admin.Lives(t.Context(), []pglock.LockInfo{info}); err != nil ||
				lives[0].Life != lockadmin.LifeAlive || lives[0].Connected != nil {
				t.Errorf("%+v, %v; want it alive by its renewals, and no connection known", lives, err)
			}
			e, err := admin.Explain(t.Context(), "report")
			if err != nil || e.Verdicts[0].Kind != "held" {
				t.Errorf("%+v, %v; want it held by somebody who lives", e.Verdicts, err)
			}
			locks := one[int](t, look, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
			if locks != 0 {
				t.Errorf("%d advisory locks are left in shared sessions", locks)
			}

			store := fencedstore.New(newPool(t, p.url(storeMode(mode))))
			for first := true; ; first = false {
				must.Do(t, store.Write(t.Context(), fencedstore.Fence{Lease: lease, SameToken: true},
					func(ctx context.Context, tx pgx.Tx) error {
						var pid int
						if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil || first {
							return err
						}
						wantBackends(lockadmin.Backend{Use: lockadmin.BackendWrite, PID: pid, Resource: "report"})
						return nil
					}))
				if !first {
					break
				}
			}
			wantBackends()
		})
	}
}
