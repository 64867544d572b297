package drivers

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// WritePool runs fn in a transaction of the pool's, begun with the options, under the fence of the lease's resource.
// fencedstore.Store.Write does the same with two round trips less, and asks what became of a COMMIT that was not
// answered.
//
// An error of fn rolls back. Errors: those of fencedstore.Guard and fencedstore.Explain, fn's and pgx's; under
// REPEATABLE READ and SERIALIZABLE SQLSTATE 40001 when the lease has ended since the snapshot.
func WritePool(
	ctx context.Context, pool *pgxpool.Pool, lease *pglock.Lease, txOptions pgx.TxOptions,
	fn func(tx pgx.Tx) error, opts ...fencedstore.FenceOption,
) error {
	tx, err := pool.BeginTx(ctx, txOptions)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // after a commit it does nothing
	if err := fencedstore.Guard(ctx, tx, lease, opts...); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return fencedstore.Explain(err, lease, opts...)
	}
	if err := fencedstore.Seal(ctx, tx, lease); err != nil {
		return err
	}
	return fencedstore.Explain(tx.Commit(ctx), lease, opts...)
}

// WriteFunc is WritePool with pgx.BeginFunc, which commits when its function returns nil and rolls back otherwise. Give
// pgx.BeginFunc a pool or a connection: of a transaction it would make a savepoint.
func WriteFunc(
	ctx context.Context, pool *pgxpool.Pool, lease *pglock.Lease, fn func(tx pgx.Tx) error,
	opts ...fencedstore.FenceOption,
) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := fencedstore.Guard(ctx, tx, lease, opts...); err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return err
		}
		return fencedstore.Seal(ctx, tx, lease)
	})
	return fencedstore.Explain(err, lease, opts...) // the commit's error too
}
