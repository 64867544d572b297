package fromredislock

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// During holds the lease and the old lock.
func During(ctx context.Context, client *pglock.Client, store *fencedstore.Store, locker *redislock.Client) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
		lock, err := locker.Obtain(ctx, "nightly", 30*time.Second,
			&redislock.Options{RetryStrategy: redislock.LinearBackoff(20 * time.Millisecond)})
		if err != nil {
			return err
		}
		defer lock.Release(context.WithoutCancel(ctx))
		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			if err := report.Write(ctx, tx); err != nil {
				return err
			}
			if left, err := lock.TTL(ctx); err != nil || left < time.Second { // the last step before COMMIT
				return redislock.ErrLockNotHeld
			}
			return nil
		})
	})
}
