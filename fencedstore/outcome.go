package fencedstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// resolve asks what became of a write whose COMMIT was not answered.
func resolve(ctx context.Context, receipt Receipt, cause error, ask look) (known bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolving)
	defer cancel()
	switch became, err := outcome(ctx, receipt, ask); {
	case err != nil:
		return false, &OutcomeUnknownError{Receipt: receipt, Err: errors.Join(cause, failure.OfOurs(err))}
	case became == OutcomeCommitted:
		return true, nil
	}
	return true, fmt.Errorf("the write was rolled back: %w", cause)
}

// Outcome is what became of a write.
type Outcome string

// The outcomes of a write.
const (
	OutcomeCommitted  Outcome = "committed"
	OutcomeRolledBack Outcome = "rolled back"
)

// outcomeLook is how long one look at an outcome waits for a transaction that is still open. It is also the longest
// pause between looks: each may take a new connection.
const outcomeLook = 500 * time.Millisecond

// look asks once whether the write of a receipt was committed.
type look func(ctx context.Context, r Receipt) (committed bool, err error)

func outcome(ctx context.Context, receipt Receipt, ask look) (Outcome, error) {
	for again := 20 * time.Millisecond; ; again = min(2*again, outcomeLook) {
		committed, err := ask(ctx, receipt)
		switch err = cmp.Or(err, ctx.Err()); { // the driver may have cancelled the wait for the standby
		case err == nil && committed:
			return OutcomeCommitted, nil
		case err == nil:
			return OutcomeRolledBack, nil
		case ctx.Err() != nil, server.Lasting(err), err.Error() == closedDB:
			return "", pglock.ForSiblings(hooks.Key{}).ErrorFromSQL(err, "", 0)
		}
		pause.For(ctx, again)
	}
}

// errUnconfirmed says that an answer may not be on the synchronous standby.
var errUnconfirmed = errors.New("the wait for the synchronous standby was cancelled")

// closedDB is the error of a closed *sql.DB, for which database/sql has no name.
const closedDB = "sql: database is closed"

// lookOptions are those of the transaction of a look.
var lookOptions = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}

// setLockTimeout bounds a look; its argument is lookWait.
const setLockTimeout = "SELECT pg_catalog.set_config('lock_timeout', $1::pg_catalog.text, true)"

func lookWait() string { return fmt.Sprint(outcomeLook.Milliseconds()) }
