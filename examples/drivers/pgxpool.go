package drivers

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
)

// WritePool runs fn in a transaction of the pool's, begun with the options, under the fence of the lease's resource.
// fencedstore.Store.Write does the same with two round trips less, and asks what became of a COMMIT that was not
// answered.
//
// An error of fn rolls back. Errors: those of fencedstore.Guard and Guarded.Explain, fn's and pgx's; under
// REPEATABLE READ and SERIALIZABLE SQLSTATE 40001 when the lease has ended since the snapshot.
func WritePool(
	ctx context.Context, pool *pgxpool.Pool, fenced fencedstore.Fenced, txOptions pgx.TxOptions,
	fn func(tx pgx.Tx) error,
) error {
	tx, err := pool.BeginTx(ctx, txOptions)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // after a commit it does nothing
	guarded, err := fencedstore.Guard(ctx, tx, fenced)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return guarded.Explain(err)
	}
	if err := guarded.Seal(ctx); err != nil {
		return err
	}
	return guarded.Explain(tx.Commit(ctx))
}

// WriteFunc is WritePool with pgx.BeginFunc, which commits when its function returns nil and rolls back otherwise. Give
// pgx.BeginFunc a pool or a connection: of a transaction it would make a savepoint.
func WriteFunc(
	ctx context.Context, pool *pgxpool.Pool, fenced fencedstore.Fenced, fn func(tx pgx.Tx) error,
) error {
	var guarded *fencedstore.Guarded
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		if guarded, err = fencedstore.Guard(ctx, tx, fenced); err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return err
		}
		return guarded.Seal(ctx)
	})
	return guarded.Explain(err) // the commit's error too
}
