package drivers

import (
	"context"
	"database/sql"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// WriteSQL runs fn in a transaction of database/sql under the fence of the lease's resource. It works with every driver
// whose errors have a method SQLState, such as pgx's stdlib and lib/pq. fn must neither commit nor roll back.
//
// An error of fn rolls back. Errors: those of fencedstore.GuardSQL and fencedstore.Explain, fn's and the driver's.
func WriteSQL(
	ctx context.Context, db *sql.DB, lease *pglock.Lease, fn func(tx *sql.Tx) error, opts ...fencedstore.FenceOption,
) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	if err := fencedstore.GuardSQL(ctx, tx, lease, opts...); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return fencedstore.Explain(err, lease, opts...)
	}
	if err := fencedstore.SealSQL(ctx, tx, lease); err != nil {
		return err
	}
	return fencedstore.Explain(tx.Commit(), lease, opts...)
}
