// Package hooks has what package pglock offers to its sibling packages and to nobody else: see Key.
package hooks

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// Grant is a pglock.Grant, as package fencedstore sends it to the server.
type Grant struct {
	ID, DatabaseID uuid.UUID
	Schema         string
	Grace          time.Duration // by which the lease is longer on the server
}

// Wanted is what a call of Acquire asks for: what package advisory needs to know of pglock's options.
type Wanted struct {
	Exclusive, Shared bool          // neither: a limit
	MaxWait           time.Duration // < 0: until ctx ends
}

// Passage is how long a transaction of the application's own may take after it has passed a fence.
type Passage struct {
	At    time.Time
	Limit time.Duration // by the local clock: what the lease has left may be less than what was given
	Given time.Duration // by the application; 0: nothing
}

// beyond is how much longer than the other limits transaction_timeout is, in the SQL function bound_transaction.
const beyond = 100 * time.Millisecond

// Overran reports whether every limit of the transaction, which has just ended, may have passed before its end. From
// PostgreSQL 17 on a server process that stood still past transaction_timeout and another limit reports the other one.
// It keeps transaction_timeout in mind, and with that it ends the next transaction of the session that has any such
// limit, at an innocent statement. So nobody may use that session again.
func (p Passage) Overran() bool { return !p.At.IsZero() && time.Since(p.At) >= p.Limit+beyond }

// Observed is what package fencedstore tells the observer: fields of a pglock.Event. The lease adds the others.
type Observed struct {
	Kind      string
	Resource  string
	LastToken int64
	Took      time.Duration
	Err       error
}

// Key is what pglock's methods for its siblings take. Packages of other modules cannot name it: the methods are not
// meant for them.
type Key struct{ _ byte }

// Package is what package pglock itself does for its siblings. LockInfo is pglock.LockInfo.
type Package[LockInfo any] interface {
	// ErrorFromSQL translates the server's errors of class LK, and its refusals that have a sentinel in pglock, into
	// errors of pglock. It returns any other error unchanged. The name and the token are the lease's, if there is
	// one.
	ErrorFromSQL(err error, name string, token int64) error

	// Start checks that the schema fits this library, and answers its version. The error is pglock.SchemaError,
	// ErrSchema, ErrPermission, ErrReadOnly, or the failure to connect.
	Start(ctx context.Context, queries *protocol.Queries, query func(context.Context, protocol.Step) error,
		schema string) (version int, err error)

	// ScanLockInfo reads a row of the columns that every view of locks has, and further columns after them.
	ScanLockInfo(rows pgx.Rows, more ...any) (LockInfo, error)
}

// Client is a *pglock.Client for its siblings. Option is pglock.AcquireOption.
type Client[Option any] interface {
	// Want reads the arguments of a call of Acquire, and refuses them as that does.
	Want(name string, opts []Option) (Wanted, error)

	// WaitAtMost is ctx with the limit of WithMaxWait, which the cause of its end names.
	WaitAtMost(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc)

	// Connect opens a connection as the client opens those that it has besides the pool, of another configuration if
	// direct is not nil. It is the caller's to close.
	Connect(ctx context.Context, direct *pgx.ConnConfig) (*pgx.Conn, error)
}

// Of gives a *pglock.Lease as its siblings see it.
func Of(lease interface{ ForSiblings(Key) Lease }) Lease { return lease.ForSiblings(Key{}) }

// Lease is a *pglock.Lease for its siblings.
type Lease interface {
	// Life ends with the lease, and its cause is that of Lease.Context, which in Do may end before.
	Life() context.Context

	// Export is Lease.Export, with the grace.
	Export() Grant

	// Home is Export without the ID and the grace: where the lease is from.
	Home() Grant

	// Connect is that of its client, of the client's configuration.
	Connect(ctx context.Context) (*pgx.Conn, error)

	// Blockers asks whom a server process waits for, and whose transactions have passed these fences. It answers
	// soon, whatever goes on in the client's pool.
	Blockers(ctx context.Context, pid int, resources []string) ([]protocol.Blocker, error)

	// Observe tells the observer of its client. Without an observer it does nothing.
	Observe(ctx context.Context, what Observed)

	// CanHandOver asks the server whether a call waits under the label to, and changes nothing. It returns nil if
	// HandOver would find one, and otherwise HandOver's error.
	CanHandOver(ctx context.Context, to string) error

	// ByClose reports whether Client.Close has ended the lease. It may say so only after Lease.Release has returned.
	ByClose() bool

	// Pool is the pool of its client.
	Pool() *pgxpool.Pool

	// Renew makes the lease last for its TTL from now on, without waiting for the heartbeat: tests of what a renewal
	// meets need one at their moment. Errors are those of Check.
	Renew(ctx context.Context) error
}
