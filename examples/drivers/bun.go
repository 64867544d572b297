package drivers

import (
	"context"
	"database/sql"
	"errors"

	_ "github.com/lib/pq" // the driver "postgres"; bun works with pgx's and its own too
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// BunAccount is the model of the table accounts.
type BunAccount struct {
	bun.BaseModel `bun:"table:accounts"`

	ID      int64 `bun:",pk"`
	Balance int64
}

// Bun writes through bun. A program opens db and client once, when it starts.
func Bun(ctx context.Context, url string) error {
	pool, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	db := bun.NewDB(pool, pgdialect.New())
	defer db.Close()
	client, err := pglock.Open(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	store := fencedstore.NewSQL(db.DB)

	return client.Do(ctx, "accounts/16", func(ctx context.Context, lease *pglock.Lease) error {
		// The fence refuses this write if somebody else has been granted the lock meanwhile.
		err := store.Write(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			return depositBun(ctx, db, tx, 16, 60)
		})
		if err != nil {
			return err
		}
		// Once does the work of this key once, whichever process asks, and however often.
		err = store.Once(ctx, lease, "interest 2026-03 accounts/16", func(ctx context.Context, tx *sql.Tx) error {
			return depositBun(ctx, db, tx, 16, 7)
		})
		if errors.Is(err, fencedstore.ErrDone) {
			return nil
		}
		return err
	})
}

// Conn puts the query into the transaction: without it bun uses another connection, which no fence protects.
func depositBun(ctx context.Context, db *bun.DB, tx *sql.Tx, account, amount int64) error {
	_, err := db.NewUpdate().Conn(tx).
		Model(&BunAccount{ID: account}).Set("balance = balance + ?", amount).WherePK().Exec(ctx)
	return err
}
