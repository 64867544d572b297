// Package migrations makes and removes the schema that pglock needs: the SQL files beside it, embedded, run by
// golang-migrate.
//
// Everything lives in one schema, "pglock" unless WithSchema says otherwise; golang-migrate's own table is
// pglock_schema_migrations in that schema, so that it cannot meet the application's. Any number of processes may migrate
// at once: they take turns. Teams with a migration tool of their own can apply the files (Files) with it: each in one
// transaction, with search_path set to the schema followed by pg_temp.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:generate go run ../internal/migrationgen

//go:embed *.sql
var files embed.FS

// Latest is the version that Up reaches.
const Latest = 1

const versionTable = "pglock_schema_migrations"

var (
	// ErrInvalid: an argument breaks a rule; nothing was changed.
	ErrInvalid = errors.New("migrations: invalid argument")
	// ErrGuarded: tables are under guard, which without the schema nobody could write to; nothing was changed.
	ErrGuarded = errors.New("migrations: tables are under guard")
	// ErrForeign: the schema was made from the plain files, by another migration tool; nothing was changed.
	ErrForeign = errors.New("migrations: schema was made by another migration tool")
)

// DirtyError says that a migration step failed. Each step is one transaction, so the schema is as it was before the
// step; the mark tells people to look at the cause first. Force takes it away.
type DirtyError struct {
	Schema  string
	Version int   // the step that failed
	Before  int   // the version that the schema really has
	Err     error // what the server said, in the run that failed; nil in later runs
}

func (e *DirtyError) Error() string {
	s := fmt.Sprintf("migrations: schema %q is marked dirty at version %d: the step to it failed and was rolled back", e.Schema, e.Version)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	var pgErr *pgconn.PgError
	if errors.As(e.Err, &pgErr) {
		for _, more := range []string{pgErr.Detail, pgErr.Hint} {
			if more != "" {
				s += " (" + more + ")"
			}
		}
	}
	return s + fmt.Sprintf("; mend the cause, then run `pglock-admin migrate force %d` or migrations.Force, and migrate again", e.Before)
}

func (e *DirtyError) Unwrap() error { return e.Err }

// Option changes where or how migrations run.
type Option func(*config) error

type config struct {
	schema string
	source fs.FS // a seam for tests
}

// WithSchema chooses the schema, 1 to 63 bytes. It is created where it is missing. Defaults to "pglock".
func WithSchema(name string) Option {
	return func(c *config) error {
		if name == "" || len(name) > 63 || !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 || strings.HasPrefix(name, "pg_") {
			return fmt.Errorf("%w: schema is %q: it must have 1 to 63 bytes of UTF-8 and not begin with pg_", ErrInvalid, name)
		}
		c.schema = name
		return nil
	}
}

// Files are the migrations as they are embedded: NNNNNN_title.up.sql and NNNNNN_title.down.sql.
func Files() fs.FS { return files }

// Up brings the schema to the latest version. databaseURL is a connection string that pgx understands; its user must be
// allowed to create the schema and, once a cluster, the roles pglock_user and pglock_admin. A schema that is already
// there is no error. When ctx ends, Up stops before the next step.
//
// Errors: ErrInvalid, *DirtyError, or what the server says.
func Up(ctx context.Context, databaseURL string, opts ...Option) error {
	return run(ctx, databaseURL, opts, true, func(_ *pgx.Conn, _ config, m *migrate.Migrate) error {
		return steps(ctx, m, 1)
	})
}

// Down takes the schema away again, with every lock and fence in it: nothing is left. The roles stay where another
// database uses them. Guarded tables are refused with ErrGuarded: drop the guards first.
func Down(ctx context.Context, databaseURL string, opts ...Option) error {
	return run(ctx, databaseURL, opts, false, func(conn *pgx.Conn, c config, m *migrate.Migrate) error {
		if err := refuseGuarded(ctx, conn, c.schema); err != nil {
			return err
		}
		if err := steps(ctx, m, -1); err != nil {
			return err
		}
		return dropRest(ctx, conn, c.schema)
	})
}

func refuseGuarded(ctx context.Context, conn *pgx.Conn, schema string) error {
	var tables *string
	err := conn.QueryRow(ctx, "SELECT string_agg(table_name, ', ') FROM "+pgx.Identifier{schema, "list_guards"}.Sanitize()+"()").Scan(&tables)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && slices.Contains([]string{"42883", "3F000"}, pgErr.Code):
		return nil // older than guards, or missing
	case err != nil:
		return fmt.Errorf("migrations: read the guards: %w", err)
	case tables != nil:
		return fmt.Errorf("%w: %s: drop the guards first, with `pglock-admin guard drop TABLE`", ErrGuarded, *tables)
	}
	return nil
}

// Version tells the version of the schema, 0 when it is missing, and whether a failed step left it marked dirty.
func Version(ctx context.Context, databaseURL string, opts ...Option) (version int, dirty bool, err error) {
	c, conn, err := connect(ctx, databaseURL, opts)
	if err != nil {
		return 0, false, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost
	return c.version(ctx, conn)
}

// Force sets the version that golang-migrate has noted, and takes the dirty mark away, without running anything: the
// way back after a DirtyError, whose Before is the version to give.
func Force(ctx context.Context, databaseURL string, version int, opts ...Option) error {
	if version < 0 || version > Latest {
		return fmt.Errorf("%w: version is %d: it must be from 0 to %d", ErrInvalid, version, Latest)
	}
	if version == 0 {
		version = -1 // golang-migrate's word for none
	}
	return run(ctx, databaseURL, opts, false, func(_ *pgx.Conn, _ config, m *migrate.Migrate) error {
		return m.Force(version)
	})
}

// steps runs one step after the other to the end. golang-migrate would read the next ones ahead, and leave a goroutine for
// each behind when a step fails.
func steps(ctx context.Context, m *migrate.Migrate, by int) error {
	for ctx.Err() == nil {
		if err := m.Steps(by); err == os.ErrNotExist { //nolint:errorlint // the word for "no more"; a version without a file wraps it
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

func connect(ctx context.Context, databaseURL string, opts []Option) (config, *pgx.Conn, error) {
	c := config{schema: "pglock", source: files}
	for _, o := range opts {
		if o == nil {
			return c, nil, fmt.Errorf("%w: option is nil", ErrInvalid)
		}
		if err := o(&c); err != nil {
			return c, nil, err
		}
	}
	cc, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return c, nil, fmt.Errorf("migrations: %w", err) // pgx leaves passwords out
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return c, nil, fmt.Errorf("migrations: %w", err)
	}
	return c, conn, nil
}

func (c config) version(ctx context.Context, conn *pgx.Conn) (version int, dirty bool, err error) {
	table := pgx.Identifier{c.schema, versionTable}.Sanitize()
	err = conn.QueryRow(ctx, "SELECT version, dirty FROM "+table).Scan(&version, &dirty)
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return max(version, 0), dirty, nil // a failed step down to nothing is noted as -1
	case errors.Is(err, pgx.ErrNoRows), errors.As(err, &pgErr) && slices.Contains([]string{"42P01", "3F000", "42501"}, pgErr.Code):
		// Migrated by other means, or not at all, or by somebody else: then the functions tell, as they do everybody.
		err = conn.QueryRow(ctx, "SELECT "+pgx.Identifier{c.schema, "schema_version"}.Sanitize()+"()").Scan(&version)
		if errors.As(err, &pgErr) && (pgErr.Code == "42883" || pgErr.Code == "3F000") {
			return 0, false, nil
		}
	}
	if err != nil {
		return 0, false, fmt.Errorf("migrations: read the version: %w", err)
	}
	return version, false, nil
}

// run does something with golang-migrate, while an advisory lock keeps other processes waiting. The lock is ours, as
// golang-migrate's own does not cover the making of the schema, and its waiting cannot be cancelled.
func run(ctx context.Context, databaseURL string, opts []Option, create bool, f func(*pgx.Conn, config, *migrate.Migrate) error) error {
	c, conn, err := connect(ctx, databaseURL, opts)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // ends the advisory lock too, whatever happens
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", "pglock migrations "+c.schema); err != nil {
		return fmt.Errorf("migrations: wait for other migrations: %w", err)
	}
	if err := c.refuseForeign(ctx, conn); err != nil {
		return err
	}
	if create {
		if err := createSchema(ctx, conn, c.schema); err != nil {
			return err
		}
	} else if found, err := schemaExists(ctx, conn, c.schema); err != nil || !found {
		return err
	}

	cc := conn.Config().Copy()
	cc.RuntimeParams["search_path"] = pgx.Identifier{c.schema}.Sanitize() + ", pg_temp"
	cc.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // a step is one text of many statements, one transaction
	db := stdlib.OpenDB(*cc)
	driver, err := migratepgx.WithInstance(db, &migratepgx.Config{MigrationsTable: versionTable, SchemaName: c.schema})
	if err != nil {
		return errors.Join(fmt.Errorf("migrations: %w", err), db.Close())
	}
	source, err := iofs.New(c.source, ".")
	if err != nil {
		return errors.Join(fmt.Errorf("migrations: %w", err), driver.Close())
	}
	m, err := migrate.NewWithInstance("embedded", source, "pgx5", driver)
	if err != nil {
		return errors.Join(fmt.Errorf("migrations: %w", err), driver.Close())
	}
	stopped := context.AfterFunc(ctx, func() { m.GracefulStop <- true }) // a buffered channel
	err = f(conn, c, m)
	stopped()
	sourceErr, driverErr := m.Close()
	return errors.Join(c.explain(ctx, conn, err), sourceErr, driverErr)
}

// explain turns golang-migrate's errors into ours.
func (c config) explain(ctx context.Context, conn *pgx.Conn, err error) error {
	if err == nil || errors.Is(err, migrate.ErrNoChange) {
		return ctx.Err()
	}
	err = serverError(err)
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var already migrate.ErrDirty
	if version, dirty, versionErr := c.version(look, conn); versionErr == nil && dirty {
		d := &DirtyError{Schema: c.schema, Version: version}
		if !errors.As(err, &already) {
			d.Err = err
		}
		// The steps are transactions: what the schema says of itself is what it has.
		_ = conn.QueryRow(look, "SELECT "+pgx.Identifier{c.schema, "schema_version"}.Sanitize()+"()").Scan(&d.Before)
		return d
	}
	return fmt.Errorf("migrations: %w", err)
}

// serverError is the server's own error: golang-migrate's hides it and repeats the whole file.
func serverError(err error) error {
	var value database.Error
	var pointer *database.Error
	switch {
	case errors.As(err, &value) && value.OrigErr != nil:
		return value.OrigErr
	case errors.As(err, &pointer) && pointer.OrigErr != nil:
		return pointer.OrigErr
	}
	return err
}

// refuseForeign refuses a schema that was made from the plain files: golang-migrate would run them again.
func (c config) refuseForeign(ctx context.Context, conn *pgx.Conn) error {
	var noted, made bool
	err := conn.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL, to_regprocedure($2) IS NOT NULL`,
		pgx.Identifier{c.schema, versionTable}.Sanitize(), pgx.Identifier{c.schema, "start_client"}.Sanitize()+"()").Scan(&noted, &made)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	if made && !noted {
		return fmt.Errorf("%w: %q: go on with that tool", ErrForeign, c.schema)
	}
	return nil
}

func schemaExists(ctx context.Context, conn *pgx.Conn, schema string) (found bool, err error) {
	if err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema).Scan(&found); err != nil {
		return false, fmt.Errorf("migrations: %w", err)
	}
	return found, nil
}

// ownComment marks a schema that Up has created, which Down may drop.
const ownComment = "pglock: made by migrations.Up"

func createSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	found, err := schemaExists(ctx, conn, schema)
	if err != nil || found {
		return err
	}
	name := pgx.Identifier{schema}.Sanitize()
	if _, err := conn.Exec(ctx, "CREATE SCHEMA "+name+"; COMMENT ON SCHEMA "+name+" IS '"+ownComment+"'"); err != nil {
		return fmt.Errorf("migrations: create schema %q: %w", schema, err)
	}
	return nil
}

// dropRest removes golang-migrate's table, and the schema if Up has created it and nothing else is in it.
func dropRest(ctx context.Context, conn *pgx.Conn, schema string) error {
	name := pgx.Identifier{schema}.Sanitize()
	if _, err := conn.Exec(ctx, "DROP TABLE IF EXISTS "+name+"."+pgx.Identifier{versionTable}.Sanitize()); err != nil {
		return err
	}
	var ours bool
	err := conn.QueryRow(ctx, `SELECT coalesce(obj_description(n.oid, 'pg_namespace') = $2, false)
		AND NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid)
		AND NOT EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid)
		AND NOT EXISTS (SELECT FROM pg_type WHERE typnamespace = n.oid)
		FROM pg_namespace n WHERE nspname = $1`, schema, ownComment).Scan(&ours)
	if err != nil || !ours {
		return err
	}
	_, err = conn.Exec(ctx, "DROP SCHEMA "+name)
	return err
}
