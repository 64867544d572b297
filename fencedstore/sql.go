package fencedstore

import (
	"context"
	"database/sql"

	"github.com/pglock-dev/pglock/pglock"
)

// SQLTx is a transaction of database/sql: a *sql.Tx, or a wrapper that passes statements and arguments on unchanged,
// such as the ConnPool that GORM has inside Transaction. If an ORM rewrites statements, as bun does, give the *sql.Tx
// inside. A *sql.DB is not an SQLTx, because each of its statements would be a transaction.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// WriteSQL is Store.Write through database/sql, with any driver for PostgreSQL whose errors have a method SQLState, as
// lib/pq and pgx's stdlib have. db must lead to the database that granted the lock. fn may give the *sql.Tx to whatever
// takes one; it must neither commit nor roll back, and must not keep it.
//
// Options, promises and errors are those of Store.Write, with three differences. The fence follows BEGIN, and COMMIT
// follows the last check, each in its own round trip. If fn commits by itself, COMMIT still checks the lease, but
// ErrLeftFence comes without the last check. If a statement of WriteSQL's own hangs because the network was cut,
// under a driver that does not heed contexts, such as lib/pq, WriteSQL closes the connection a second after ctx has
// ended. What became of an unanswered COMMIT it asks over a connection of the lease's client. After an
// OutcomeUnknownError, ask OutcomeSQL.
func WriteSQL(
	ctx context.Context, db *sql.DB, lease *pglock.Lease, fn func(context.Context, *sql.Tx) error, opts ...FenceOption,
) error {
	if err := checkSQL(db, fn); err != nil {
		return err
	}
	c, o, err := openWrite(lease, opts)
	if err != nil {
		return err
	}
	return write(ctx, sqlDatabase{db, c.transactionOp, o.fences[0].Lease}, o, inSQL(fn))
}

// WriteAllSQL is Store.WriteAll through database/sql, as WriteSQL is Store.Write.
func WriteAllSQL(
	ctx context.Context, db *sql.DB, fences []Fence, fn func(context.Context, *sql.Tx) error, opts ...FenceOption,
) error {
	if err := checkSQL(db, fn); err != nil {
		return err
	}
	c, o, err := openAll(fences, opts, true)
	if err != nil {
		return err
	}
	return write(ctx, sqlDatabase{db, c.transactionOp, o.fences[0].Lease}, o, inSQL(fn))
}

// OnceSQL is Store.Once through database/sql, as WriteSQL is Store.Write.
func OnceSQL(
	ctx context.Context, db *sql.DB, lease *pglock.Lease, key string, fn func(context.Context, *sql.Tx) error,
	opts ...FenceOption,
) error {
	if err := checkSQL(db, fn); err != nil {
		return err
	}
	c, o, err := openOnce(lease, key, opts, true)
	if err != nil {
		return err
	}
	return write(ctx, sqlDatabase{db, c.transactionOp, o.fences[0].Lease}, o, inSQL(fn))
}

// OutcomeSQL is Store.Outcome through database/sql. Under a driver that does not heed contexts when it connects, such
// as lib/pq without connect_timeout, it may return later than ctx ends.
func OutcomeSQL(ctx context.Context, db *sql.DB, receipt Receipt) (Outcome, error) {
	if db == nil {
		return "", errNilDB
	}
	return outcome(ctx, outcomes{db}, receipt)
}

var errNilDB = invalid("db", "nil", "be a *sql.DB")

func checkSQL(db *sql.DB, fn func(context.Context, *sql.Tx) error) error {
	if db == nil {
		return errNilDB
	}
	if fn == nil {
		return errNilFn
	}
	return nil
}

func inSQL(fn func(context.Context, *sql.Tx) error) func(context.Context, connection) error {
	return func(ctx context.Context, c connection) error { return fn(ctx, c.(*sqlConn).tx) }
}
