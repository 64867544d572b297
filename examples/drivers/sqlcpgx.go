package drivers

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/drivers/accounts"
	"github.com/pglock-dev/pglock/fencedstore"
)

// WriteQueries runs the queries of fn, which sqlc generated, in a fenced transaction of the store's. fn writes through
// q alone: queries made from a pool go through another connection, which is under no fence. Errors: those of
// Store.Write.
func WriteQueries(
	ctx context.Context, store *fencedstore.Store, fenced fencedstore.Fenced,
	fn func(ctx context.Context, q *accounts.Queries) error,
) error {
	return store.Write(ctx, fenced, func(ctx context.Context, tx pgx.Tx) error {
		return fn(ctx, accounts.New(tx))
	})
}

// GuardQueries is WriteQueries for a program that has a Queries already, in a transaction of its own pool. Errors:
// those of WriteFunc.
func GuardQueries(
	ctx context.Context, pool *pgxpool.Pool, queries *accounts.Queries, fenced fencedstore.Fenced,
	fn func(q *accounts.Queries) error,
) error {
	return WriteFunc(ctx, pool, fenced, func(tx pgx.Tx) error {
		return fn(queries.WithTx(tx))
	})
}
