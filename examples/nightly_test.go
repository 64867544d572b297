package examples_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

var worked atomic.Int64

// work stands for the job.
func work(context.Context) (total int64, err error) { return worked.Add(1), nil }

// In the README from here on.
func nightly(ctx context.Context, client *pglock.Client, pool *pgxpool.Pool, due time.Time) error {
	store, night := fencedstore.New(pool), due.UTC().Format(time.RFC3339) // due is planned, not time.Now()
	key, open := "nightly-report "+night, errors.New("open")
	err := client.Do(ctx, "nightly-report", func(ctx context.Context, lease *pglock.Lease) error {
		err := store.Once(ctx, lease, key, func(context.Context, pgx.Tx) error { return open }) // only asks
		if !errors.Is(err, open) {
			return err
		}
		total, err := work(ctx) // takes hours, outside a transaction
		if err != nil {
			return err
		}
		return store.Once(ctx, lease, key, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ($1, $2)", night, total)
			return err
		})
	})
	if errors.Is(err, fencedstore.ErrDone) {
		return nil // another replica has done it
	}
	return err
}
