package fencedstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/pglock"
)

const (
	// resolving bounds how long a write whose COMMIT was not answered asks what became of it.
	resolving = 5 * time.Second
	// auditing bounds the note about a refused write.
	auditing = time.Second
)

// Store makes fenced writes over the application's pool, which stays the caller's. It is safe for concurrent use and has
// no goroutines.
type Store struct {
	pool *pgxpool.Pool
}

// New makes a store. Its pool must lead to the database that grants the locks. A nil pool is refused by Write.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// WithTxOptions sets the isolation level and the access mode of the transaction; BeginQuery and CommitQuery must be
// empty. Defaults to the session's. Under REPEATABLE READ and SERIALIZABLE a write that outlives the expiry which its
// snapshot shows is refused, also when the lease was renewed meanwhile.
func WithTxOptions(o pgx.TxOptions) Option {
	return func(c *config) error {
		if o.BeginQuery != "" || o.CommitQuery != "" {
			return &pglock.ArgumentError{Field: "transaction options", Value: "with a BeginQuery or CommitQuery", Rule: "have neither"}
		}
		c.transactionOp = o
		return nil
	}
}

// Write runs fn in a transaction under the fence of the lease's resource, and commits it only if the lease still holds
// by the server's clock, checked inside the COMMIT. BEGIN and the fence travel together, and the last check travels with
// COMMIT: no round trip is added to a plain transaction.
//
// First the fence row is taken, which may wait for a predecessor's open transaction; then the token must be greater than
// every one that has passed; then the lease is checked; then fn runs. fn must neither commit nor roll back, and its
// transaction may last no longer than the lease has left when it begins: the server ends it then. fn's context ends
// with ctx and with the lease.
//
// An error or a panic of fn, or the end of ctx, rolls back; fn's error is returned as it is, joined with the loss when
// the lease is lost by then. A nil return means committed. Errors: ErrStaleToken (StaleTokenError; the refusal is noted
// in the audit), ErrLeftFence, pglock.ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase, ErrPermission, and
// pglock.ErrOutcomeUnknown (OutcomeUnknownError) when the answer to COMMIT was lost and nobody could be asked. Retrying
// with the same lease is safe: had the first attempt been committed, the second is refused as stale, unless
// AllowSameToken is given.
func (s *Store) Write(ctx context.Context, lease *pglock.Lease, fn func(context.Context, pgx.Tx) error, opts ...Option) error {
	if s == nil || s.pool == nil {
		return &pglock.ArgumentError{Field: "pool", Value: "nil", Rule: "be a *pgxpool.Pool"}
	}
	if fn == nil {
		return &pglock.ArgumentError{Field: "fn", Value: "nil", Rule: "be a function"}
	}
	c, err := newConfig(lease, opts)
	if err != nil {
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("fencedstore: write to resource %q: %w", c.resource, err)
	}
	defer func() {
		if conn != nil {
			conn.Release()
		}
	}()
	tx, xact, err := begin(ctx, conn.Conn(), lease, c)
	if err != nil {
		err = translate(err, lease, c.resource)
		conn.Release()
		conn = nil
		if errors.Is(err, ErrStaleToken) {
			s.noteRefusal(ctx, lease, c.resource)
		}
		return fmt.Errorf("fencedstore: write to resource %q: %w", c.resource, err)
	}
	if err := call(ctx, lease, tx, fn); err != nil {
		return explainFailure(err, lease, c.resource)
	}
	// A COMMIT that is not answered long after the lease has ended is lost on the way: find out what became of it.
	committing, cancel := context.WithTimeout(ctx, lease.TTL()+resolving)
	err = tx.Commit(committing)
	cancel()
	unconfirmed := pglock.Unconfirmed(conn.Conn())
	conn.Release()
	conn = nil
	switch {
	case err == nil && unconfirmed:
		return &OutcomeUnknownError{Transaction: xact, Err: errors.New("committed, but the wait for the synchronous standby was cancelled")}
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxClosed): // a Commit in the callback has sealed and committed, a Rollback has not
		return fmt.Errorf("fencedstore: write to resource %q: %w: the callback ended its transaction by itself", c.resource, ErrLeftFence)
	case answered(err):
		return fmt.Errorf("fencedstore: commit to resource %q: %w", c.resource, translate(err, lease, c.resource))
	}
	return s.resolve(ctx, xact, err)
}

// begin sends BEGIN and the fence together. A serialization failure of the fence, before anything else was done, is
// tried again: under REPEATABLE READ every wait for a predecessor ends in one.
func begin(ctx context.Context, conn *pgx.Conn, lease *pglock.Lease, c config) (tx pgx.Tx, xact uint64, err error) {
	o := c.transactionOp
	o.CommitQuery = sealSQL(lease.Schema()) + "; COMMIT"
	for attempt := 0; ; attempt++ {
		batch := &pgx.Batch{}
		batch.BeginTx(o)
		var text string
		batch.Queue(fenceSQL(lease.Schema()), c.args(lease)...)
		results := conn.SendBatch(ctx, batch)
		tx = results.Tx()
		_, err = results.Exec()
		if err == nil {
			err = results.QueryRow().Scan(&text)
		}
		if closeErr := results.Close(); err == nil {
			err = closeErr
		}
		if err == nil {
			xact, err = strconv.ParseUint(text, 10, 64)
		}
		if err == nil {
			return tx, xact, nil
		}
		rollback(ctx, tx)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "40001" || attempt == 20 || lease.Err() != nil {
			return nil, 0, err
		}
	}
}

// call runs fn and rolls back unless it returned nil, also when it panics.
func call(ctx context.Context, lease *pglock.Lease, tx pgx.Tx, fn func(context.Context, pgx.Tx) error) error {
	done := false
	defer func() {
		if !done {
			rollback(ctx, tx)
		}
	}()
	fnCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })
	defer stop()
	if err := fn(fnCtx, tx); err != nil {
		return err
	}
	if err := context.Cause(fnCtx); err != nil {
		return err
	}
	if err := lease.Err(); err != nil {
		return err
	}
	done = true
	return nil
}

// rollback ends the transaction, also when ctx has ended; a connection that cannot roll back is closed, which does.
func rollback(ctx context.Context, tx pgx.Tx) {
	if tx == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditing)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		_ = tx.Conn().Close(ctx)
	}
}

// explainFailure returns fn's own error, with the loss of the lease beside it when that is the likely reason: the server
// ends a fenced transaction when its lease ends.
func explainFailure(err error, lease *pglock.Lease, resource string) error {
	err = translate(err, lease, resource)
	if lost := lease.Err(); lost != nil && !errors.Is(err, pglock.ErrLost) && !errors.Is(err, pglock.ErrReleased) {
		return errors.Join(err, lost)
	}
	return err
}

// answered reports whether the server itself refused the COMMIT: then it was rolled back. A server that ends the
// connection instead, for an administrator or in a crash, may have committed before.
func answered(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	return !strings.HasPrefix(pgErr.Code, "57P") && !strings.HasPrefix(pgErr.Code, "08")
}

// resolve asks what became of a transaction whose COMMIT was not answered.
func (s *Store) resolve(ctx context.Context, xact uint64, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolving)
	defer cancel()
	outcome, replicated, err := s.outcome(ctx, xact)
	switch {
	case err != nil:
		return &OutcomeUnknownError{Transaction: xact, Err: errors.Join(cause, err)}
	case outcome == Committed && replicated:
		return &OutcomeUnknownError{Transaction: xact, Err: errors.Join(cause, errors.New("committed on the primary; the synchronous standby was not waited for"))}
	case outcome == Committed:
		return nil
	}
	return fmt.Errorf("fencedstore: transaction %d was rolled back: %w", xact, cause)
}

// Outcome is what became of a transaction.
type Outcome string

// The outcomes of a transaction.
const (
	Committed  Outcome = "committed"
	RolledBack Outcome = "aborted"
)

// Outcome asks what became of the transaction of an OutcomeUnknownError, waiting until it is final or ctx ends. A
// transaction that the server does not know, as after a failover that lost it, has been rolled back there.
func (s *Store) Outcome(ctx context.Context, transaction uint64) (Outcome, error) {
	outcome, _, err := s.outcome(ctx, transaction)
	return outcome, err
}

func (s *Store) outcome(ctx context.Context, xact uint64) (o Outcome, replicated bool, err error) {
	for {
		var status *string
		err = s.pool.QueryRow(ctx, `SELECT pg_catalog.pg_xact_status($1::pg_catalog.text::pg_catalog.xid8),
			pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''
				AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) ALL (ARRAY['off', 'local'])`,
			strconv.FormatUint(xact, 10)).Scan(&status, &replicated)
		var pgErr *pgconn.PgError
		switch {
		case errors.As(err, &pgErr) && pgErr.Code == "22023": // "transaction ID is in the future"
			return RolledBack, replicated, nil
		case err == nil && status == nil:
			return "", false, fmt.Errorf("fencedstore: transaction %d is too old: the server has forgotten it", xact)
		case err == nil && *status != "in progress":
			return Outcome(*status), replicated, nil
		case ctx.Err() != nil && err == nil:
			return "", false, fmt.Errorf("fencedstore: transaction %d is still in progress: %w", xact, ctx.Err())
		case ctx.Err() != nil:
			return "", false, err
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// noteRefusal keeps a refused stale write for the audit; the refused transaction itself left nothing.
func (s *Store) noteRefusal(ctx context.Context, lease *pglock.Lease, resource string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditing)
	defer cancel()
	_, _ = s.pool.Exec(ctx, "SELECT "+pgx.Identifier{lease.Schema(), "record_refusal"}.Sanitize()+
		"($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.int8, $4::pg_catalog.text)",
		resource, lease.Name(), int64(lease.Token()), lease.Holder()) // best effort: the refusal itself stands
}
