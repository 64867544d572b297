package drivers

import (
	"context"
	"database/sql"
	"errors"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// PGX writes through database/sql with the driver of pgx. A program opens db and client once, when it starts.
func PGX(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
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

	return client.Do(ctx, "accounts/16", func(ctx context.Context, lease *pglock.Lease) error {
		// The fence refuses this write if somebody else has been granted the lock meanwhile.
		err := store.Write(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", 60, 16)
			return err
		})
		if err != nil {
			return err
		}
		// Once does the work of this key once, whichever process asks, and however often.
		err = store.Once(ctx, lease, "interest 2026-03 accounts/16", func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", 7, 16)
			return err
		})
		if errors.Is(err, fencedstore.ErrDone) {
			return nil
		}
		return err
	})
}
