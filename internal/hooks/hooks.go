// Package hooks is what package pglock does for the packages beside it, and for nobody else. pglock sets them in its init, so
// whoever imports pglock finds them set.
package hooks

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// Grant is what package fencedstore tells the server of a lease: pglock.Grant.
type Grant struct {
	ID, DatabaseID uuid.UUID
	Schema         string
}

// Passage is how long a transaction of the application's own may take after it has passed a fence.
type Passage struct {
	At    time.Time
	Limit time.Duration
	Given bool // by the application
}

var (
	// ErrorFromSQL makes an error of pglock of what the server reports: of class LK, and of its refusals that have a sentinel there.
	// Any other comes back as it is. The name and the token are those of the lease, where there is one.
	ErrorFromSQL func(err error, name string, token int64) error

	// Start asks whether the schema fits this library. The error is pglock.SchemaError, ErrSchema, ErrPermission, ErrReadOnly, or the
	// failure to connect.
	Start func(ctx context.Context, queries *protocol.Queries, query func(context.Context, protocol.Step) error, schema string) error

	// Export is Lease.Export of a *pglock.Lease, which goes on where that fails: the ID is nil then, and the server says why.
	Export func(lease any) Grant

	// Home is Export, but for the ID, and the release of the lease is as it was.
	Home func(lease any) Grant

	// Passed notes a passage with the *pglock.Lease, unless it is nil, and gives the one that was noted last, or nil.
	Passed func(lease any, p *Passage) *Passage
)
