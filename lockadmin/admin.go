package lockadmin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// Refusals, for errors.Is. Others come from package pglock: ErrInvalid, ErrPermission, ErrReadOnly, ErrSchema.
var (
	// ErrNotFound: nobody has ever used a lock of this name, or its row was pruned.
	ErrNotFound = errors.New("lockadmin: lock not found")
	// ErrNotHeld: there is no lease to break, or it has another token than the named one.
	ErrNotHeld = errors.New("lockadmin: lock is not held")
	// ErrInUse: Prune or SetHistory found the table of locks, or the record of the installation, in use for as long as
	// its ctx allowed.
	ErrInUse = errors.New("lockadmin: table of locks is in use, or the record of the installation")
)

// Admin looks at the locks of one schema, and breaks them. It has no goroutines and nothing to close, and is safe for
// concurrent use.
type Admin struct {
	pool   *pgxpool.Pool
	schema string
	db     *server.Plain
}

// Option configures New and Diagnose. A bad value makes them fail.
type Option func(*config) error

type config struct{ schema string }

const defaultSchema = "pglock"

// WithSchema names the schema of the tables and functions. Defaults to "pglock".
func WithSchema(name string) Option {
	return func(c *config) error {
		c.schema = name
		return refuse.Text("schema", name, argument.SchemaBytes)
	}
}

func newConfig(pool *pgxpool.Pool, opts []Option) (config, error) {
	c := config{schema: defaultSchema}
	if pool == nil {
		return c, refuse.Nil("pool", "be a *pgxpool.Pool")
	}
	err := refuse.Options(&c, opts)
	return c, err
}

// New makes an Admin over a pool, which stays the caller's. It asks the server once whether the schema exists and
// fits; ctx bounds only that question. A session that is read-only may look, and so may one on a standby, which shows
// the past: the method Standby says how old. There every method that writes fails with ErrReadOnly. If somebody has
// locked the table that the answer needs, New asks no more after two seconds: Explain and Overview say who it is.
//
// Errors: pglock.ErrInvalid, ErrSchema, ErrPermission, or the failure to connect, which names the host.
func New(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (*Admin, error) {
	c, err := newConfig(pool, opts)
	if err != nil {
		return nil, err
	}
	a := &Admin{pool: pool, schema: c.schema, db: server.NewPlain(pool, c.schema)}
	_, err = start(ctx, a.db, c.schema)
	if err != nil && !errors.Is(err, pglock.ErrReadOnly) && !protocol.LockedOut(err) {
		return nil, failure.At(ctx, err, "lockadmin: look at the schema")
	}
	return a, nil
}

// start asks what a client asks when it starts, but does not wait for long.
func start(ctx context.Context, db *server.Plain, schema string) (version int, err error) {
	return pglock.ForSiblings(hooks.Key{}).Start(ctx, db.Queries, func(ctx context.Context, s protocol.Step) error {
		s.Wait = patience
		return db.Query(ctx, s)
	}, schema)
}

// failed says what was not done, and why; nil without an error.
func failed(ctx context.Context, err error, what string, args ...any) error {
	if protocol.State(err) == protocol.StateNotHeld {
		err = fmt.Errorf("%w: %s", ErrNotHeld, protocol.Message(err))
	} else if err != nil {
		err = pglock.ForSiblings(hooks.Key{}).ErrorFromSQL(err, "", 0)
	}
	return failure.At(ctx, err, "lockadmin: "+what, args...)
}
