package fencedstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// answered reports whether the server itself refused the COMMIT: then it was rolled back. A server that ends the
// connection instead, for an administrator or in a crash, may have committed before.
func answered(err error) bool {
	return errors.Is(err, pgx.ErrTxCommitRollback) || !protocol.ConnectionLost(err)
}

// resolve asks what became of a write whose COMMIT was not answered.
func resolve(ctx context.Context, db database, receipt Receipt, cause error) (known bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolving)
	defer cancel()
	switch became, err := outcome(ctx, db, receipt); {
	case err != nil:
		return false, &OutcomeUnknownError{Receipt: receipt, Err: errors.Join(cause, err)}
	case became == OutcomeCommitted:
		return true, nil
	}
	return true, fmt.Errorf("fencedstore: the write was rolled back: %w", cause)
}

// Outcome is what became of a write.
type Outcome string

// The outcomes of a write.
const (
	OutcomeCommitted  Outcome = "committed"
	OutcomeRolledBack Outcome = "rolled back"
)

// outcomeLook is how long one look at an outcome waits for a transaction that is still open.
const outcomeLook = 500 * time.Millisecond

// Outcome asks what became of the write of an OutcomeUnknownError, waiting until it is final or ctx ends. The answer is on disk
// when it is given, and on a synchronous standby where there is one. A write that the server does not know, as after a failover
// that lost it, was rolled back there: and so it is after a week, so ask sooner.
func (s *Store) Outcome(ctx context.Context, receipt Receipt) (Outcome, error) {
	if s == nil || s.pool == nil {
		return "", errNilPool
	}
	return outcome(ctx, pgxDatabase{pool: s.pool}, receipt)
}

func outcome(ctx context.Context, db database, receipt Receipt) (Outcome, error) {
	for {
		committed, err := db.look(ctx, receipt)
		switch {
		case err == nil && committed:
			return OutcomeCommitted, nil
		case err == nil:
			return OutcomeRolledBack, nil
		case ctx.Err() != nil || protocol.State(err) == "42501" || protocol.State(err) == "3F000" || protocol.State(err) == "42883":
			return "", fmt.Errorf("fencedstore: outcome of write %s: %w", receipt.Write, err)
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// errUnconfirmed says that an answer may not be on the synchronous standby.
var errUnconfirmed = errors.New("the wait for the synchronous standby was cancelled")

// setLockTimeout bounds a look; its argument is lookWait.
const setLockTimeout = "SELECT pg_catalog.set_config('lock_timeout', $1::pg_catalog.text, true)"

func lookWait() string { return fmt.Sprint(outcomeLook.Milliseconds()) }
