package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Fetcher calls a partner's service from any number of processes. The service allows a few calls at a time.
type Fetcher struct {
	Client *pglock.Client
	Store  *fencedstore.Store
	Limit  int                                                    // the same in every process
	Call   func(ctx context.Context, item string) (string, error) // ends when ctx does
}

// Fetch waits for one of the places, calls the partner, and keeps the answer. Call's context ends when the place is
// lost. Each place has its own fence, so a caller that was paused cannot overwrite what the next one has written.
func (f *Fetcher) Fetch(ctx context.Context, item string) error {
	return f.Client.Do(ctx, "partner", func(ctx context.Context, lease *pglock.Lease) error {
		answer, err := f.Call(ctx, item)
		if err != nil {
			return err
		}
		return f.Store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			const keep = "INSERT INTO answers (item, answer) VALUES ($1, $2) ON CONFLICT (item) DO NOTHING"
			_, err := tx.Exec(ctx, keep, item, answer)
			return err
		})
	}, pglock.WithLimit(f.Limit))
}
