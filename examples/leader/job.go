package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// Lead runs step again and again in the process that leads, until ctx ends. A step that fails is tried again. Call Lead
// in every process. The others wait in a queue; the first of them leads when the leader dies, is cut off, resigns or
// ends.
func Lead(ctx context.Context, candidate *leader.Candidate, store *fencedstore.Store, every time.Duration,
	step func(ctx context.Context, tx pgx.Tx, lease *pglock.Lease) error) error {
	return candidate.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
		term := fencedstore.Fence{Lease: lease, SameToken: true} // a term has many steps
		for {
			err := store.Write(ctx, term, func(ctx context.Context, tx pgx.Tx) error {
				return step(ctx, tx, lease)
			})
			overtaken := errors.Is(err, pglock.ErrLost) || errors.Is(err, fencedstore.ErrStaleToken)
			if overtaken || ctx.Err() != nil {
				return err // Run campaigns again if leadership was lost
			}
			if err != nil {
				slog.WarnContext(ctx, "a step has failed and will be tried again", "error", err)
			}
			select {
			case <-time.After(every):
			case <-ctx.Done():
				return nil
			}
		}
	})
}
