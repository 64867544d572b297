package fencedstore

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/pglock"
)

// Store makes fenced writes through the application's pool. The pool stays the caller's. A store is safe for concurrent
// use and has no goroutines.
type Store struct{ pool *pgxpool.Pool }

// New makes a store. Its pool must lead to the database that grants the locks. Write refuses a nil pool.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// Write runs fn in a transaction under the fence of the lease's resource. It commits only if the lease still holds by
// the server's clock, checked inside COMMIT. BEGIN and the fence travel together, and so do the last check and COMMIT:
// a fenced write has as many round trips as a plain transaction.
//
// The server first takes the row of the fence, which may have to wait for a predecessor's open transaction. Then it
// compares the token, checks the lease, and fn runs. fn must neither commit nor roll back. The transaction may take as
// long as the lease has left when it passes the fence, or as long as WithTimeLimit says. fn's context ends with ctx and
// with the lease.
//
// An error or a panic of fn, and the end of ctx, roll the transaction back. Write returns fn's error as it is; if the
// lease is lost by then, it joins the loss. A nil return means committed.
//
// Options: WithResource, WithSameToken, WithTimeLimit, WithTxOptions. Errors: ErrStaleToken (StaleTokenError),
// ErrLeftFence, ErrTimeLimit (TimeLimitError), pglock.ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase,
// ErrPermission, and pglock.ErrOutcomeUnknown (OutcomeUnknownError) if the answer to COMMIT was lost and nobody could
// say what became of it. It is safe to try again with the same lease and without WithSameToken: if the first attempt
// was committed, the fence refuses the second as stale.
func (s *Store) Write(
	ctx context.Context, lease *pglock.Lease, fn func(context.Context, pgx.Tx) error, opts ...FenceOption,
) error {
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
	errNilPool = invalid("pool", "nil", "be a *pgxpool.Pool")
	errNilFn   = invalid("fn", "nil", "be a function")
)

func inPgx(fn func(context.Context, pgx.Tx) error) func(context.Context, connection) error {
	return func(ctx context.Context, c connection) error { return fn(ctx, c.(*pgxConn).tx) }
}
