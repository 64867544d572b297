package fromredsync

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// After waits in a queue, for as long as ctx allows.
func After(ctx context.Context, client *pglock.Client, store *fencedstore.Store) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error { return report.Write(ctx, tx) })
	}, pglock.WithTTL(30*time.Second))
}
