package drivers

import (
	"context"
	"database/sql"
	"errors"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Account is the model of the table accounts.
type Account struct {
	ID      int64
	Balance int64
}

// GORM writes through GORM. A program opens db and client once, when it starts.
func GORM(ctx context.Context, url string) error {
	db, err := gorm.Open(postgres.Open(url))
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pglock.Open(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	store := fencedstore.NewSQL(pool)

	return client.Do(ctx, "accounts/16", func(ctx context.Context, lease *pglock.Lease) error {
		// The fence refuses this write if somebody else has been granted the lock meanwhile.
		err := store.Write(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			return deposit(GORMIn(ctx, db, tx), 16, 60)
		})
		if err != nil {
			return err
		}
		// Once does the work of this key once, whichever process asks, and however often.
		err = store.Once(ctx, lease, "interest 2026-03 accounts/16", func(ctx context.Context, tx *sql.Tx) error {
			return deposit(GORMIn(ctx, db, tx), 16, 7)
		})
		if errors.Is(err, fencedstore.ErrDone) {
			return nil
		}
		return err
	})
}

func deposit(db *gorm.DB, account, amount int64) error {
	return db.Model(&Account{ID: account}).Update("balance", gorm.Expr("balance + ?", amount)).Error
}

// GORMIn is GORM inside a transaction of database/sql. If GORM begins a transaction in there, it makes a savepoint.
func GORMIn(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	in := db.Session(&gorm.Session{Context: ctx, NewDB: true})
	in.Statement.ConnPool = tx
	return in
}
