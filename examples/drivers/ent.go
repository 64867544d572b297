package drivers

import (
	"context"
	"database/sql"
	"errors"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Ent writes through ent. A program opens db and client once, when it starts.
func Ent(ctx context.Context, url string) error {
	db, err := entsql.Open(dialect.Postgres, url)
	if err != nil {
		return err
	}
	defer db.Close()
	client, err := pglock.Open(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	store := fencedstore.NewSQL(db.DB())

	return client.Do(ctx, "accounts/16", func(ctx context.Context, lease *pglock.Lease) error {
		// The fence refuses this write if somebody else has been granted the lock meanwhile.
		err := store.Write(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			return depositEnt(ctx, EntIn(tx), 16, 60)
		})
		if err != nil {
			return err
		}
		// Once does the work of this key once, whichever process asks, and however often.
		err = store.Once(ctx, lease, "interest 2026-03 accounts/16", func(ctx context.Context, tx *sql.Tx) error {
			return depositEnt(ctx, EntIn(tx), 16, 7)
		})
		if errors.Is(err, fencedstore.ErrDone) {
			return nil
		}
		return err
	})
}

// With a generated client: ent.NewClient(ent.Driver(in)).Account.UpdateOneID(account).AddBalance(amount).Exec(ctx)
func depositEnt(ctx context.Context, in dialect.Driver, account, amount int64) error {
	query, args := entsql.Dialect(dialect.Postgres).
		Update("accounts").Add("balance", amount).Where(entsql.EQ("id", account)).Query()
	var result sql.Result
	return in.Exec(ctx, query, args, &result)
}

// EntIn is a driver for a client of ent inside a transaction of database/sql. ent begins a transaction for many of its
// writes; here each of them is the transaction itself. Rolling back one of them rolls back everything, and the fenced
// write then fails.
func EntIn(tx *sql.Tx) dialect.Driver {
	return entTx{Driver: entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx}), tx: tx}
}

type entTx struct {
	dialect.Driver
	tx *sql.Tx
}

func (t entTx) Tx(context.Context) (dialect.Tx, error) { return t, nil }
func (t entTx) Commit() error                          { return nil }
func (t entTx) Rollback() error                        { return t.tx.Rollback() }
