package drivers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// ErrNested is what WriteGORM answers inside a transaction: GORM would make it a savepoint there, and a fence that is
// taken after a savepoint goes when that is rolled back. Guard the outermost transaction.
var ErrNested = errors.New("drivers: the fence belongs into the outermost transaction")

// WriteGORM runs fn in a transaction of GORM under the fence of the lease's resource. fn may nest transactions: GORM makes
// savepoints of them, and a rollback to a savepoint from after the fence leaves the fence where it is.
//
// An error of fn rolls back. Errors: ErrNested, those of fencedstore.GuardSQL and fencedstore.Explain, fn's and GORM's.
func WriteGORM(
	ctx context.Context, db *gorm.DB, lease *pglock.Lease, fn func(tx *gorm.DB) error, opts ...fencedstore.FenceOption,
) error {
	if _, nested := db.Statement.ConnPool.(gorm.TxCommitter); nested {
		return ErrNested
	}
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		inner, err := SQLTx(tx)
		if err != nil {
			return err
		}
		if err := fencedstore.GuardSQL(ctx, inner, lease, opts...); err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return err
		}
		return fencedstore.SealSQL(ctx, inner, lease)
	})
	return fencedstore.Explain(err, lease, opts...) // the commit's error too
}

// SQLTx is the transaction of database/sql under one of GORM, also where GORM caches prepared statements.
func SQLTx(tx *gorm.DB) (*sql.Tx, error) {
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		pool = prepared.Tx
	}
	inner, ok := pool.(*sql.Tx)
	if !ok {
		return nil, fmt.Errorf("drivers: GORM's connection is %T: it must be a *sql.Tx, as inside Transaction", pool)
	}
	return inner, nil
}
