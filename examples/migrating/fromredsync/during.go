package fromredsync

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// During holds the lease and the old lock.
func During(ctx context.Context, client *pglock.Client, store *fencedstore.Store, locks *redsync.Redsync) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
		mutex := locks.NewMutex("nightly", redsync.WithExpiry(30*time.Second), redsync.WithTries(400))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		defer mutex.UnlockContext(context.WithoutCancel(ctx))
		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			if err := report.Write(ctx, tx); err != nil {
				return err
			}
			if held, err := mutex.ExtendContext(ctx); err != nil || !held { // the last step before COMMIT
				return errors.Join(errors.New("the old lock is lost"), err)
			}
			return nil
		})
	})
}
