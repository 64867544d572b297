package pglock

import (
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// ObserveCommits prepares a connection configuration; call it before you make the pool. Without it the library
// cannot notice a commit that PostgreSQL reports as done although its wait for a synchronous standby was
// cancelled, for example by pg_cancel_backend: the server reports this only in a warning. With it the library
// asks for such a grant again, and reports such a fenced write as ErrOutcomeUnknown. A handler that is already
// set is still called. Without synchronous replication it does nothing.
func ObserveCommits(config *pgx.ConnConfig) { protocol.ObserveCommits(config) }
