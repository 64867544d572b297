package frometcd

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// MutexAfter waits in pglock's queue.
func MutexAfter(ctx context.Context, client *pglock.Client, store *fencedstore.Store) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error { return report.Write(ctx, tx) })
	}, pglock.WithTTL(30*time.Second))
}

// ElectionAfter leads until work returns, and campaigns again when leadership was lost.
func ElectionAfter(
	ctx context.Context, client *pglock.Client, me string, work func(context.Context, *pglock.Lease) error,
) error {
	candidate, err := leader.New(client, "reporter", leader.WithTTL(30*time.Second), leader.WithHolder(me))
	if err != nil {
		return err
	}
	return candidate.Run(ctx, work)
}

// Leader calls tell with the leader's name, now and at each change, until ctx ends. It is empty while nobody leads.
func Leader(ctx context.Context, client *pglock.Client, tell func(name string)) error {
	for info, err := range leader.Observe(ctx, client, "reporter") {
		if err != nil {
			return err
		}
		tell(info.Holder)
	}
	return nil
}
