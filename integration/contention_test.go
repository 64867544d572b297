package integration

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// slowDisk makes every flush of a server of the test's own wait two milliseconds.
var slowDisk = map[string]string{"fsync": "on", "commit_delay": "2000", "commit_siblings": "0",
	"wal_sync_method": "fdatasync"}

// renewals takes so many renewals one after another, and gives how long each took, sorted.
func renewals(t *testing.T, l *pglock.Lease, n int) []time.Duration {
	t.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		must.Do(t, hooks.Of(l).Renew(t.Context()))
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took
}

// I14: neither those who try nor those who queue slow the holder's renewals down: none of them keeps the lock's row
// over a flush of the disk. With a row lock held over it, renewals take twenty times as long here.
func TestI14_ContendersAndWaitersDoNotSlowRenewals(t *testing.T) {
	server := migrated(t, slowDisk)
	holder := mustTry(t, newClient(t, newPool(t, server.URL())), "x", pglock.WithTTL(time.Minute))
	n := 2 * 76
	renewals(t, holder, 20)
	for what, kind := range map[string]struct {
		contend func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error)
		refused error
		waits   bool
	}{
		"tries": {func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error) {
			return c.TryAcquire(ctx, "x")
		}, pglock.ErrHeld, false},
		"queues and leaves": {func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error) {
			return c.Acquire(ctx, "x", pglock.WithMaxWait(50*time.Millisecond))
		}, context.DeadlineExceeded, true},
	} {
		t.Run(what, func(t *testing.T) {
			var clients []*pglock.Client
			var waiting waits
			for range 4 {
				clients = append(clients, newClient(t, newPool(t, server.URL(), maxConnections(8)),
					pglock.WithObserver(&waiting)))
			}
			const contenders = 32
			const rounds = 4 // something else may slow this machine down while one of the two is measured
			for round := 1; ; round++ {
				alone := renewals(t, holder, n)
				ctx, cancel := context.WithCancel(t.Context())
				began := make(chan struct{}, contenders) // who has contended
				waited := waiting.Load()
				var wg sync.WaitGroup
				for i := range contenders {
					wg.Go(func() {
						for once := false; ctx.Err() == nil; once = true {
							if _, err := kind.contend(ctx, clients[i%len(clients)]); !errors.Is(err, kind.refused) &&
								ctx.Err() == nil {
								t.Errorf("a contender: %v, want %v", err, kind.refused)
							}
							if !once {
								began <- struct{}{}
							}
							select {
							case <-ctx.Done():
							case <-time.After(20 * time.Millisecond): // the pace of the contenders
							}
						}
					})
				}
				for range contenders {
					<-began
				}
				// One is enough: where the machine is busy most of them leave before they are in the queue.
				pgtest.Eventually(t, "somebody to have waited", func() bool {
					return !kind.waits || waiting.Load() > waited
				})
				took := renewals(t, holder, n)
				cancel()
				wg.Wait()
				t.Logf("renewals alone: p50 %v, p90 %v, p99 %v; beside %d contenders: p50 %v, p90 %v, p99 %v",
					alone[n/2], alone[n*9/10], alone[n*99/100], contenders, took[n/2], took[n*9/10], took[n*99/100])
				if took[n/2] <= 4*alone[n/2] {
					return
				} else if round == rounds {
					t.Fatalf("I14: half of the renewals take longer than %v beside %d contenders, %v without",
						took[n/2], contenders, alone[n/2])
				}
			}
		})
	}
}
