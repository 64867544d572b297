package fencedstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	// resolving bounds how long a write whose COMMIT was not answered asks what became of it.
	resolving = 5 * time.Second
	// rollingBack bounds a ROLLBACK.
	rollingBack = time.Second
)

// Store makes fenced writes over the application's pool, which stays the caller's. It is safe for concurrent use and has
// no goroutines.
type Store struct {
	pool     *pgxpool.Pool
	receipts receipts
}

// New makes a store. Its pool must lead to the database that grants the locks. A nil pool is refused by Write.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// WithTxOptions sets the isolation level and the access mode of the transaction; BeginQuery and CommitQuery must be
// empty. Defaults to the session's. Under REPEATABLE READ and SERIALIZABLE a write that outlives the expiry which its
// snapshot shows is refused, also when the lease was renewed meanwhile.
func WithTxOptions(o pgx.TxOptions) FenceOption {
	return func(c *config) error {
		if o.BeginQuery != "" || o.CommitQuery != "" {
			return &pglock.ArgumentError{Field: "transaction options", Value: "with a BeginQuery or CommitQuery", Rule: "have neither"}
		}
		levels := []pgx.TxIsoLevel{"", pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
		if !slices.Contains(levels, o.IsoLevel) {
			return &pglock.ArgumentError{Field: "isolation level", Value: string(o.IsoLevel), Rule: "be one of pgx's"}
		}
		if o.AccessMode == pgx.ReadOnly {
			return &pglock.ArgumentError{Field: "access mode", Value: string(o.AccessMode), Rule: "be read write: passing a fence writes"}
		}
		c.transactionOp, c.inTransaction = o, true
		return nil
	}
}

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
	c, err := newConfig(lease, opts)
	if err == nil {
		err = c.refuse(true, false)
	}
	if err != nil {
		return err
	}
	return s.write(ctx, c.transactionOp, c.openOne(lease), fn)
}

func (s *Store) check(fn func(context.Context, pgx.Tx) error) error {
	if s == nil || s.pool == nil {
		return &pglock.ArgumentError{Field: "pool", Value: "nil", Rule: "be a *pgxpool.Pool"}
	}
	if fn == nil {
		return &pglock.ArgumentError{Field: "fn", Value: "nil", Rule: "be a function"}
	}
	return nil
}

// write is Write for any way of opening.
func (s *Store) write(ctx context.Context, options pgx.TxOptions, o opening, fn func(context.Context, pgx.Tx) error) error {
	receipt, err := s.receipts.take(o.schema())
	if err != nil {
		return err
	}
	conn, tx, err := s.open(ctx, options, o, receipt)
	if err != nil {
		return fmt.Errorf("fencedstore: write to %s: %w", o, err)
	}
	// The next write may use the receipt's row when it is known what became of this one, and that it is over.
	known := true
	defer func() {
		if known && !conn.Conn().IsClosed() {
			s.receipts.putBack(receipt)
		}
		conn.Release()
	}()
	if err := call(ctx, o.fences, tx, fn); err != nil {
		return explainFailure(err, o)
	}
	// A COMMIT that is not answered long after the lease has ended is lost on the way: find out what became of it.
	committing, cancel := context.WithTimeout(ctx, o.longestTTL()+resolving)
	defer cancel()
	_ = protocol.Unconfirmed(conn.Conn()) // of a commit that was the application's own
	err = commit(committing, tx, o)
	switch {
	case err == nil && protocol.Unconfirmed(conn.Conn()):
		known = false
		return &OutcomeUnknownError{Receipt: receipt, Err: errors.New("committed, but the wait for the synchronous standby was cancelled")}
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxClosed): // a Commit in the callback has sealed and committed, a Rollback has not
		return fmt.Errorf("fencedstore: write to %s: %w: the callback ended its transaction by itself", o, ErrLeftFence)
	case answered(err):
		return fmt.Errorf("fencedstore: commit to %s: %w", o, explain(err, o))
	}
	known = false
	conn.Release() // the answer may need the pool's only one
	over, err := s.resolve(ctx, receipt, err)
	if over {
		s.receipts.putBack(receipt)
	}
	return err
}

// open gives a transaction under its fences, and the connection that it is on.
func (s *Store) open(ctx context.Context, options pgx.TxOptions, o opening, receipt Receipt) (conn *pgxpool.Conn, tx pgx.Tx, err error) {
	for attempt := 0; ; attempt++ {
		if conn, err = s.pool.Acquire(ctx); err != nil {
			return nil, nil, err
		}
		if tx, err = begin(ctx, conn.Conn(), options, o, receipt); err == nil {
			return conn, tx, nil
		}
		dead := conn.Conn().IsClosed()
		conn.Release()
		if !dead || attempt == 3 || ctx.Err() != nil || o.lost() != nil {
			f := o.blamed(err)
			return nil, nil, translate(err, f.Lease, f.Resource)
		}
		// The connection was dead, or died before anything was done: another one.
	}
}

// begin sends BEGIN and the opening together. A serialization failure of the fence, before anything else was done, is
// tried again: under REPEATABLE READ every wait for a predecessor ends in one.
func begin(ctx context.Context, conn *pgx.Conn, options pgx.TxOptions, o opening, receipt Receipt) (tx pgx.Tx, err error) {
	options.CommitQuery = protocol.SealOf(o.schema(), o.resources()) + "; COMMIT"
	for attempt := 0; ; attempt++ {
		batch := &pgx.Batch{}
		batch.BeginTx(options)
		batch.Queue(o.sql, append(slices.Clone(o.args), receipt.ID.String(), receipt.Write.String())...)
		results := conn.SendBatch(ctx, batch)
		tx = results.Tx()
		_, err = results.Exec()
		if err == nil {
			err = o.read(results.QueryRow())
		}
		if closeErr := results.Close(); err == nil {
			err = closeErr
		}
		if err == nil {
			return tx, nil
		}
		rollback(ctx, tx)
		if protocol.State(err) != "40001" || attempt == 20 || o.lost() != nil {
			return nil, err
		}
	}
}

// commit sends the last check and COMMIT together.
func commit(ctx context.Context, tx pgx.Tx, o opening) error {
	batch := &pgx.Batch{}
	batch.Queue(protocol.Seal(o.schema()), o.resources())
	batch.Queue("COMMIT")
	results := tx.SendBatch(ctx, batch)
	_, err := results.Exec()
	if err == nil {
		_, err = results.Exec()
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil && !errors.Is(err, pgx.ErrTxClosed) && tx.Conn().PgConn().TxStatus() != 'I' {
		rollback(ctx, tx)
	}
	return err
}

// call runs fn and rolls back unless it returned nil, also when it panics.
func call(ctx context.Context, fences []Fence, tx pgx.Tx, fn func(context.Context, pgx.Tx) error) error {
	done := false
	defer func() {
		if !done {
			rollback(ctx, tx)
		}
	}()
	fnCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, f := range fences {
		stop := context.AfterFunc(f.Lease.Context(), func() { cancel(context.Cause(f.Lease.Context())) })
		defer stop()
	}
	if err := fn(fnCtx, tx); err != nil {
		return err
	}
	if err := context.Cause(fnCtx); err != nil {
		return err
	}
	for _, f := range fences {
		if err := f.Lease.Err(); err != nil {
			return err
		}
	}
	done = true
	return nil
}

// rollback ends the transaction, also when ctx has ended; a connection that cannot roll back is closed, which does.
func rollback(ctx context.Context, tx pgx.Tx) {
	if tx == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollingBack)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		_ = tx.Conn().Close(ctx)
	}
}

// explain translates the refusals of the protocol alone: what the application's own statements were refused for is left as
// it is.
func explain(err error, o opening) error {
	if !strings.HasPrefix(protocol.State(err), "LK") {
		return err
	}
	f := o.blamed(err)
	return translate(err, f.Lease, f.Resource)
}

// explainFailure returns fn's own error, with the loss of the lease beside it when that is the likely reason: the server
// ends a fenced transaction when its lease ends.
func explainFailure(err error, o opening) error {
	if s := protocol.State(err); s == "25P03" || s == "25P04" || s == "57014" || s == "55P03" {
		err = fmt.Errorf("%w (a fenced transaction may last no longer than its lease had left: Renew before a long one, or choose a longer TTL)", err)
	}
	err = explain(err, o)
	if lost := o.lost(); lost != nil && !errors.Is(err, pglock.ErrLost) && !errors.Is(err, pglock.ErrReleased) {
		return errors.Join(err, lost)
	}
	return err
}
