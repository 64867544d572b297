package drivers

import (
	"context"
	"database/sql"
	"errors"

	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/pglock-dev/pglock/examples/drivers/accountsql" // what sqlc has generated: yours
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// SQLC writes with queries that sqlc has generated for database/sql. A program opens db and client once, when it
// starts.
func SQLC(ctx context.Context, url string) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	client, err := pglock.Open(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	store := fencedstore.NewSQL(db)
	queries := accountsql.New(db)

	return client.Do(ctx, "accounts/16", func(ctx context.Context, lease *pglock.Lease) error {
		// The fence refuses this write if somebody else has been granted the lock meanwhile.
		err := store.Write(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			_, err := queries.WithTx(tx).Deposit(ctx, accountsql.DepositParams{ID: 16, Amount: 60})
			return err
		})
		if err != nil {
			return err
		}
		// Once does the work of this key once, whichever process asks, and however often.
		err = store.Once(ctx, lease, "interest 2026-03 accounts/16", func(ctx context.Context, tx *sql.Tx) error {
			_, err := queries.WithTx(tx).Deposit(ctx, accountsql.DepositParams{ID: 16, Amount: 7})
			return err
		})
		if errors.Is(err, fencedstore.ErrDone) {
			return nil
		}
		return err
	})
}
