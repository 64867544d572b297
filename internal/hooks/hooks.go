// Package hooks is what package pglock does for the packages beside it, and for nobody else. pglock sets them in its init, so
// whoever imports pglock finds them set.
package hooks

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// Grant is what package fencedstore tells the server of a lease: pglock.Grant.
type Grant struct {
	ID, DatabaseID uuid.UUID
	Schema         string
}

// Wanted is what a call of Acquire asks for: what package advisory needs to know of pglock's options.
type Wanted struct {
	Exclusive, Shared bool          // neither: a limit
	MaxWait           time.Duration // < 0: until ctx ends
}

var (
	// ErrorFromSQL makes an error of pglock of what the server reports: of class LK, and of its refusals that have a sentinel there.
	// Any other comes back as it is. The name and the token are those of the lease, where there is one.
	ErrorFromSQL func(err error, name string, token int64) error

	// Start asks whether the schema fits this library, and for its version. The error is pglock.SchemaError, ErrSchema, ErrPermission, ErrReadOnly, or the
	// failure to connect.
	Start func(ctx context.Context, queries *protocol.Queries, query func(context.Context, protocol.Step) error, schema string) (version int, err error)

	// Export is Lease.Export of a *pglock.Lease, which goes on where that fails: the ID is nil then, and the server says why.
	Export func(lease any) Grant

	// Home is Export, but for the ID, and the release of the lease is as it was.
	Home func(lease any) Grant

	// Want reads the name and the []pglock.AcquireOption of a call of a *pglock.Client's Acquire, and refuses them as that does.
	Want func(client any, name string, opts any) (Wanted, error)

	// Connect opens a connection as a *pglock.Client opens those that it has besides the pool. It is the caller's to close.
	Connect func(ctx context.Context, client any) (*pgx.Conn, error)
)
