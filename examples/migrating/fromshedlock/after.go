package fromshedlock

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// After writes the report of a night once, whichever program asks, and however often. That is what lockAtLeastFor was
// for.
func After(ctx context.Context, client *pglock.Client, store *fencedstore.Store, night string) (done bool, err error) {
	lease, err := client.TryAcquire(ctx, "nightly", pglock.WithTTL(30*time.Second)) // not lockAtMostFor: it is renewed
	if errors.Is(err, pglock.ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lease.Release(ctx)
	err = store.Once(ctx, lease, "nightly "+night, func(ctx context.Context, tx pgx.Tx) error {
		return report.Write(ctx, tx)
	})
	if errors.Is(err, fencedstore.ErrDone) {
		return false, nil
	}
	return err == nil, err
}
