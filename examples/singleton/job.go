package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Singleton runs step again and again, in one process at a time, until a step says that nothing is left or ctx ends.
// Call it in every process: the others wait, and hold no connection meanwhile. Each step is one transaction, so whoever
// takes over goes on after the last whole step. When a step fails, the next process takes over, and this one queues
// again a second later.
func Singleton(ctx context.Context, client *pglock.Client, store *fencedstore.Store, name string,
	step func(context.Context, pgx.Tx) (more bool, err error)) error {
	for {
		began := false
		err := client.Do(ctx, name, func(ctx context.Context, lease *pglock.Lease) (err error) {
			began = true
			fence := fencedstore.Fence{Lease: lease, SameToken: true} // one lease makes many steps
			for more := true; more && err == nil; {
				err = store.Write(ctx, fence, func(ctx context.Context, tx pgx.Tx) (err error) {
					more, err = step(ctx, tx)
					return err
				})
			}
			return err
		})
		lasting := errors.Is(err, pglock.ErrInvalid) || errors.Is(err, pglock.ErrClosed) ||
			errors.Is(err, pglock.ErrSchema) || errors.Is(err, pglock.ErrPermission) ||
			!began && (errors.Is(err, pglock.ErrSelfDeadlock) || errors.Is(err, pglock.ErrDeadlock))
		if err == nil || lasting || ctx.Err() != nil {
			return err
		}
		// A step has failed; or this process was paused or cut off for too long, and another is at work.
		slog.WarnContext(ctx, "queues again", "error", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}
