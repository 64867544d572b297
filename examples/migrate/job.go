package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Migration is a change of the application's schema. Never rename one that was released: its name is how replicas know
// that it was made.
type Migration struct {
	Name  string
	Limit time.Duration // the longest time that it needs; after a crash the next replica waits this long
	Up    func(context.Context, pgx.Tx) error
}

// Migrate makes the migrations that were not made yet, in order. Call it at the start of every replica: it returns when
// all are made, by whichever replica. A migration and the note that it was made are one transaction. Give each
// application whose locks are in the same schema its own name, and never rename it.
func Migrate(ctx context.Context, client *pglock.Client, store *fencedstore.Store, app string,
	migrations []Migration) error {
	return client.Do(ctx, app+"/migrations", func(ctx context.Context, lease *pglock.Lease) error {
		for _, m := range migrations {
			err := store.With(fencedstore.WithTimeLimit(m.Limit)).Once(ctx, lease, app+"/migration/"+m.Name, m.Up)
			if err != nil && !errors.Is(err, fencedstore.ErrDone) {
				return fmt.Errorf("migration %s: %w", m.Name, err)
			}
		}
		return nil
	})
}

// SQL is a migration's Up that runs a script.
func SQL(script string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, script)
		return err
	}
}
