// Package migrations makes and removes the schema that pglock needs: embedded SQL files, run by golang-migrate.
//
// Everything lives in one schema, "pglock" unless WithSchema says otherwise. That includes golang-migrate's table,
// pglock_schema_migrations, which therefore cannot collide with the application's. Any number of processes may
// migrate at once: they take turns. Every step and its version are one transaction, so a step is done completely or
// not at all.
//
// A team with another migration tool can apply the files (Files): each in one transaction, with search_path set to
// the schema followed by pg_temp.
package migrations

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/failure"
)

//go:generate go run ../internal/dev/migrationgen

//go:embed *.sql
var files embed.FS

// Latest is the version that Up reaches.
const Latest = 1

// Files are the embedded migrations: NNNNNN_title.up.sql and NNNNNN_title.down.sql.
func Files() fs.FS { return files }

// Database names the database and its user by what a program has: a connection string that pgx understands, a pool, a
// connection, or a configuration that pgx has made. Migrations open a connection of their own, as these were opened: of
// a pool also BeforeConnect runs, and nothing else that the pool does. They leave the pool and the connection alone.
type Database interface {
	string | *pgxpool.Pool | *pgx.Conn | *pgxpool.Config | *pgx.ConnConfig
}

// Option changes where or how migrations run.
type Option func(*config) error

type config struct {
	schema string
	source fs.FS // latest is a seam for tests
	latest int
}

// WithSchema chooses the schema, 1 to 63 bytes without $$, which would end the body of a function. Up creates it if it
// is missing. Defaults to "pglock".
func WithSchema(name string) Option {
	return func(c *config) error {
		if name == "" || len(name) > 63 || !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 ||
			strings.HasPrefix(name, "pg_") || strings.Contains(name, "$$") {
			return fmt.Errorf("%w: schema is %q: it must have 1 to 63 bytes of UTF-8, no $$, and not begin with pg_",
				ErrInvalid, name)
		}
		c.schema = name
		return nil
	}
}

// Up brings the schema to the latest version. Every program can call it at its start: if the schema already has that
// version, Up changes nothing, waits for nobody, and needs only the role pglock_user. Otherwise the user must own the
// schema. If the schema is missing, the user must be allowed to create it and, once per cluster, the roles
// pglock_user and pglock_admin. Up refuses a schema in which others may make objects, or have functions or
// golang-migrate's table: their code would run with the rights of the functions' owner or of the user.
//
// A failed step is rolled back, and the steps before it stay. Correct the cause and call Up again. When ctx ends, the
// current step is rolled back too.
//
// Errors: ErrInvalid, *RightError, *StepError, *DirtyError, ErrBusy, ErrForeign, ErrNewer, or the failure to connect.
func Up[D Database](ctx context.Context, database D, opts ...Option) error {
	return run(ctx, database, opts, session.up)
}

// Down removes the schema with every lock and fence in it. The roles go with all memberships, unless another database
// uses them or the user may not drop them. It refuses with ErrGuarded while tables are guarded: drop the guards first.
// Who may act as a superuser, make roles, or reach the server's files must be the owner, or set its role: otherwise
// Down refuses, as the owner's code would run with those rights. That is against mistakes: code of an owner who means
// harm can set the role back.
//
// Down waits for whoever uses a table for five seconds at most, for each table, because every program waits behind it:
// then its StepError has SQLSTATE 55P03.
//
// Errors: those of Up, and ErrGuarded.
func Down[D Database](ctx context.Context, database D, opts ...Option) error {
	return run(ctx, database, opts, session.down)
}

// Version returns the version that the schema reports, 0 if it is missing, and whether Up and Down refuse with a
// DirtyError until Force. It needs the role pglock_user.
func Version[D Database](ctx context.Context, database D, opts ...Option) (version int, dirty bool, err error) {
	err = run(ctx, database, opts, func(s session, ctx context.Context) error {
		found, err := s.look(ctx, s.conn)
		if err != nil {
			return err
		}
		version, dirty = found.version, found.contradicted()
		return s.mayLook(found)
	})
	return version, dirty, err
}

// Check returns the error with which Up would refuse to begin; nil if it would not refuse, or has nothing to do. It
// changes nothing.
//
// Errors: ErrInvalid, *RightError, *StepError, *DirtyError, ErrForeign, ErrNewer, or the failure to connect.
func Check[D Database](ctx context.Context, database D, opts ...Option) error {
	return run(ctx, database, opts, func(s session, ctx context.Context) error {
		there, err := s.look(ctx, s.conn)
		if err != nil || there.version == s.latest {
			return err
		}
		if err := cmp.Or(s.check(there), s.checkRoles(there)); err != nil {
			return err
		}
		return s.tryHead(ctx, there)
	})
}

// Force notes a version in golang-migrate's table and clears its dirty mark, without running anything. Use it after a
// DirtyError, with that error's Before. The version must be the one that the schema reports, 0 if it is missing.
func Force[D Database](ctx context.Context, database D, version int, opts ...Option) error {
	c, err := configured(opts)
	if err != nil {
		return err
	}
	if version < 0 || version > c.latest {
		return fmt.Errorf("%w: version is %d: it must be from 0 to %d", ErrInvalid, version, c.latest)
	}
	return run(ctx, database, opts, func(s session, ctx context.Context) error { return s.force(ctx, version) })
}

func configured(opts []Option) (config, error) {
	c := config{schema: "pglock", source: files, latest: Latest}
	for _, o := range opts {
		if o == nil {
			return c, fmt.Errorf("%w: option is nil: it must be an option of this package", ErrInvalid)
		}
		if err := o(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// run gives f a session, and a second one if the connection was lost after a step that was done nevertheless.
func run[D Database](ctx context.Context, database D, opts []Option, f func(session, context.Context) error) error {
	c, err := configured(opts)
	if err != nil {
		return err
	}
	connect, err := parse(database)
	if err != nil {
		return err
	}
	for {
		err := c.connected(ctx, connect, func(s session) error { return f(s, ctx) })
		step, failed := errors.AsType[*StepError](err)
		if !failed || !step.Unknown || !c.resolve(ctx, connect, step) {
			if errors.Is(err, ErrInvalid) { // of the caller's, whatever the schema
				return err
			}
			return failure.At(ctx, err, "migrations: schema %q", c.schema)
		}
	}
}
