package pglock

import (
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// ObserveCommits prepares a connection configuration, before the pool is made, so that this library learns of a commit
// that PostgreSQL reports as done although its wait for a synchronous standby was cancelled (by pg_cancel_backend, say);
// the server tells so in a warning alone. With it such a grant is asked for again and such a fenced write is reported as
// ErrOutcomeUnknown. A handler that is set already is still called. Without synchronous replication it does nothing.
func ObserveCommits(config *pgx.ConnConfig) { protocol.ObserveCommits(config) }
