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
)

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
