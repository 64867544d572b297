package fromadvisory

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// LockAfter waits without a connection.
func LockAfter(ctx context.Context, client *pglock.Client, store *fencedstore.Store) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error { return report.Write(ctx, tx) })
	})
}

// TryAfter does nothing while another program holds the lock, or waits for it.
func TryAfter(ctx context.Context, client *pglock.Client, store *fencedstore.Store) (done bool, err error) {
	lease, err := client.TryAcquire(ctx, "nightly")
	if errors.Is(err, pglock.ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lease.Release(ctx)
	return true, store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error { return report.Write(ctx, tx) })
}
