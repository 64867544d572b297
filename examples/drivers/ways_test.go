package drivers_test

import (
	"context"
	"database/sql"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/pglock-dev/pglock/examples/drivers"
	"github.com/pglock-dev/pglock/examples/drivers/accountsql"
	"github.com/pglock-dev/pglock/fencedstore"
)

var (
	bunWay = way{"bun", func(t *testing.T, s *scene) deposit {
		db := bun.NewDB(openSQL(t, "pgx", s.url), pgdialect.New())
		return overSQL(db.DB, func(ctx context.Context, tx *sql.Tx, amount int64) error {
			_, err := db.NewUpdate().Conn(tx).Model(&drivers.BunAccount{ID: s.account}).Set("balance = balance + ?",
				amount).WherePK().Exec(ctx)
			return err
		})
	}}
	entWay = way{"ent", func(t *testing.T, s *scene) deposit {
		return overSQL(openSQL(t, "pgx", s.url), func(ctx context.Context, tx *sql.Tx, amount int64) error {
			// As ent writes an entity: in a transaction that it begins.
			nested, err := drivers.EntIn(tx).Tx(ctx)
			if err != nil {
				return err
			}
			query, args := entsql.Dialect(dialect.Postgres).Update("accounts").Add("balance",
				amount).Where(entsql.EQ("id", s.account)).Query()
			var result sql.Result
			if err := nested.Exec(ctx, query, args, &result); err != nil {
				return err
			}
			return nested.Commit()
		})
	}}
	sqlcSQLWay = way{"sqlc for database/sql", func(t *testing.T, s *scene) deposit {
		db := openSQL(t, "postgres", s.url)
		return overSQL(db, func(ctx context.Context, tx *sql.Tx, amount int64) error {
			_, err := accountsql.New(db).WithTx(tx).Deposit(ctx, accountsql.DepositParams{ID: s.account,
				Amount: amount})
			return err
		})
	}}
)

// overSQL deposits with a function of a library inside the transaction.
func overSQL(db *sql.DB, add func(ctx context.Context, tx *sql.Tx, amount int64) error) deposit {
	return func(ctx context.Context, fenced fencedstore.Fenced, amounts []int64, last func() error) error {
		return fencedstore.NewSQL(db).Write(ctx, fenced, func(ctx context.Context, tx *sql.Tx) error {
			for _, amount := range amounts {
				if err := add(ctx, tx, amount); err != nil {
					return err
				}
			}
			return last()
		})
	}
}
