package fromadvisory

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// LockDuring holds both locks.
func LockDuring(ctx context.Context, bridge *advisory.Bridge) error {
	key := advisory.Hashtext("nightly")
	return bridge.Do(ctx, "nightly", key, func(ctx context.Context, held *advisory.Held) error {
		return held.Write(ctx, func(ctx context.Context, tx pgx.Tx) error { return report.Write(ctx, tx) })
	})
}

// TryDuring does nothing while an old or a new program holds the lock.
func TryDuring(ctx context.Context, bridge *advisory.Bridge) (done bool, err error) {
	held, err := bridge.TryAcquire(ctx, "nightly", advisory.Bigint(42))
	if errors.Is(err, pglock.ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer held.Release(ctx)
	return true, held.Write(ctx, func(ctx context.Context, tx pgx.Tx) error { return report.Write(ctx, tx) })
}

// TxDuring needs no bridge: the old lock and the write are one transaction.
func TxDuring(ctx context.Context, client *pglock.Client, store *fencedstore.Store) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(7, 1)"); err != nil { // before the first read
				return err
			}
			return report.Write(ctx, tx)
		})
	})
}
