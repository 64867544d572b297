package examples_test

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// In the README from here on.
func nightly(ctx context.Context, client *pglock.Client, store *fencedstore.Store, due time.Time) error {
	night := due.UTC().Format(time.DateOnly) // the slot of the schedule
	err := client.Do(ctx, "nightly-report", func(ctx context.Context, lease *pglock.Lease) error {
		return store.Once(ctx, lease, "nightly-report "+night, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ($1)", night)
			return err
		}, fencedstore.WithTimeLimit(10*time.Minute)) // without it: what the lease has left, 30 s at most
	})
	if errors.Is(err, fencedstore.ErrDone) {
		return nil // another replica has done it
	}
	return err
}
