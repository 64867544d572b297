package fencedstore

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/pglock"
)

// Store makes fenced writes over the application's pool, which stays the caller's. It is safe for concurrent use and has
// no goroutines.
type Store struct{ pool *pgxpool.Pool }

// New makes a store. Its pool must lead to the database that grants the locks. A nil pool is refused by Write.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// Write runs fn in a transaction under the fence of the lease's resource, and commits it only if the lease still holds
// by the server's clock, checked inside the COMMIT. BEGIN and the fence travel together, and the last check travels with
// COMMIT: no round trip is added to a plain transaction.
//
// First the fence row is taken, which may wait for a predecessor's open transaction; then the token must be greater than
// every one that has passed; then the lease is checked; then fn runs. fn must neither commit nor roll back, and its
// transaction should last no longer than the lease has left when it begins: the server ends one that hangs for so long, and
// from PostgreSQL 17 on any. fn's context ends with ctx and with the lease.
//
// An error or a panic of fn, or the end of ctx, rolls back; fn's error is returned as it is, joined with the loss when
// the lease is lost by then. A nil return means committed. Errors: ErrStaleToken (StaleTokenError), ErrLeftFence, pglock.ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase, ErrPermission, and
// pglock.ErrOutcomeUnknown (OutcomeUnknownError) when the answer to COMMIT was lost and nobody could be asked. Retrying
// with the same lease is safe: had the first attempt been committed, the second is refused as stale, unless
// WithSameToken is given.
func (s *Store) Write(ctx context.Context, lease *pglock.Lease, fn func(context.Context, pgx.Tx) error, opts ...FenceOption) error {
	if err := s.check(fn); err != nil {
		return err
	}
	c, o, err := openWrite(lease, opts)
	if err != nil {
		return err
	}
	return write(ctx, pgxDatabase{s.pool, c.transactionOp}, o, inPgx(fn))
}

func (s *Store) check(fn func(context.Context, pgx.Tx) error) error {
	if s == nil || s.pool == nil {
		return errNilPool
	}
	if fn == nil {
		return errNilFn
	}
	return nil
}

var (
	errNilPool = &pglock.ArgumentError{Field: "pool", Value: "nil", Rule: "be a *pgxpool.Pool"}
	errNilFn   = &pglock.ArgumentError{Field: "fn", Value: "nil", Rule: "be a function"}
)

func inPgx(fn func(context.Context, pgx.Tx) error) func(context.Context, connection) error {
	return func(ctx context.Context, c connection) error { return fn(ctx, c.(*pgxConn).tx) }
}
