package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
)

// session is a connection that migrates.
type session struct {
	config
	conn *pgx.Conn
}

const versionTable = "pglock_schema_migrations"

// parse returns a configuration for migrations. It prepares no statements: a pooler that shares connections loses
// them.
func parse[D Database](database D) (to target, err error) {
	var poolConfig *pgxpool.Config
	switch d := any(database).(type) {
	case string:
		if to.config, err = pgx.ParseConfig(d); err != nil {
			return to, failure.Told(err, "migrations: read the connection string") // pgx leaves passwords out
		}
	case *pgxpool.Pool:
		if d != nil {
			poolConfig = d.Config()
		}
	case *pgx.Conn:
		if d != nil {
			to.config = d.Config()
		}
	case *pgxpool.Config:
		poolConfig = d
	case *pgx.ConnConfig:
		to.config = d
	}
	if poolConfig != nil {
		to = target{poolConfig.ConnConfig, poolConfig.BeforeConnect}
	}
	if to.config == nil || !made(to.config) {
		return to, fmt.Errorf("%w: database is a %T that is nil or made by hand: it must be made by pgx", ErrInvalid,
			database)
	}
	to.config = to.config.Copy()
	to.config.DefaultQueryExecMode = pgx.QueryExecModeExec
	argument.NameApplication(to.config.RuntimeParams)
	return to, nil
}

// target is where migrations connect, and what a pool does before it connects.
type target struct {
	config *pgx.ConnConfig
	before func(context.Context, *pgx.ConnConfig) error
}

func (t target) connect(ctx context.Context) (*pgx.Conn, error) {
	config := t.config.Copy()
	if t.before != nil {
		if err := t.before(ctx, config); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config)
}

// made reports whether pgx accepts the configuration; pgx panics on one that ParseConfig has not made.
func made(config *pgx.ConnConfig) (ok bool) {
	defer func() { ok = recover() == nil }()
	ctx, cancel := context.WithCancel(context.Background()) // ended before it is used
	cancel()
	if conn, err := pgx.ConnectConfig(ctx, config.Copy()); err == nil {
		_ = conn.Close(ctx)
	}
	return true
}

func (c config) connected(ctx context.Context, to target, f func(session) error) error {
	conn, err := to.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost
	return f(session{c, conn})
}

// up runs one step after another, each in its own transaction. It leaves a current schema alone.
func (s session) up(ctx context.Context) error {
	there, err := s.look(ctx, s.conn)
	if err != nil {
		return err
	}
	current := func(f found) bool { return f.version == s.latest && !(f.outdated() && f.mayChange) }
	for done := current(there); !done; {
		err := s.change(ctx, func(tx pgx.Tx, there found, to func(int)) error {
			if done = current(there); done {
				return nil
			}
			if there.version == s.latest {
				return note(ctx, tx, s.quoted(versionTable), there.version)
			}
			if err := s.check(there); err != nil {
				return err
			}
			to(there.version + 1)
			return s.step(ctx, tx, there, 1)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// down runs one step after another, and removes the rest together with the last one.
func (s session) down(ctx context.Context) error {
	there, err := s.look(ctx, s.conn)
	if err != nil || !there.made && !there.table {
		return err
	}
	if err := s.check(there); err != nil {
		return err
	}
	if err := s.refuseGuarded(ctx); err != nil {
		return err
	}
	for done := false; !done; {
		err := s.change(ctx, func(tx pgx.Tx, there found, to func(int)) error {
			if err := s.check(there); err != nil {
				return err
			}
			done = there.version <= 1
			if there.made {
				to(there.version - 1)
				if err := s.step(ctx, tx, there, -1); err != nil {
					return err
				}
			}
			if done && there.schema {
				return s.dropRest(ctx, tx)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s session) force(ctx context.Context, version int) error {
	_, err := s.alone(ctx, func(tx pgx.Tx, there found) error {
		err := s.check(there)
		var dirty *DirtyError
		switch {
		case err != nil && !errors.As(err, &dirty):
			return err
		case there.version != version && there.version == 0:
			return fmt.Errorf("%w: version is %d: it must be 0, because schema %q is missing", ErrInvalid, version,
				s.schema)
		case there.version != version:
			return fmt.Errorf("%w: version is %d: it must be %d, which schema %q says it has", ErrInvalid, version,
				there.version, s.schema)
		case !there.table:
			return nil
		}
		return note(ctx, tx, s.quoted(versionTable), version)
	})
	return err
}

// change runs f, which changes the version and returns the new one, alone and in one transaction.
func (s session) change(ctx context.Context, f func(tx pgx.Tx, there found, to func(int)) error) error {
	var step *StepError
	sent, err := s.alone(ctx, func(tx pgx.Tx, there found) error {
		return f(tx, there, func(to int) { step = &StepError{Schema: s.schema, From: there.version, To: to} })
	})
	if err != nil && step != nil {
		step.Unknown, step.Err = sent, err
		return step
	}
	return err
}

// step runs the next file. It refuses a file that does not change the version that the schema reports: it would run
// for ever.
func (s session) step(ctx context.Context, tx pgx.Tx, there found, by int) error {
	if err := s.prepare(ctx, tx, there); err != nil {
		return err
	}
	if err := oneStep(&driver{ctx: ctx, tx: tx, table: s.quoted(versionTable), version: there.version}, s.config,
		by); err != nil {
		return err
	}
	after, err := s.look(ctx, tx)
	if err == nil && after.version != there.version+by {
		err = fmt.Errorf("schema_version() returns %d after the file of version %d", after.version, there.version+
			max(by, 0))
	}
	return err
}

// tryHead says why the next file would be refused. It runs the checks with which that begins, and undoes it.
func (s session) tryHead(ctx context.Context, there found) error {
	if !there.schema { // then it will be made by this user
		return nil
	}
	names, err := fs.Glob(s.source, fmt.Sprintf("%06d_*.up.sql", there.version+1))
	if err != nil || len(names) != 1 {
		return fmt.Errorf("version %d has %d files", there.version+1, len(names))
	}
	file, err := fs.ReadFile(s.source, names[0])
	if err != nil {
		return fmt.Errorf("read %s: %w", names[0], err)
	}
	head, _, found := strings.Cut(string(file), "END $do$;")
	if !found {
		return nil
	}
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it has done nothing
	if err := s.prepare(ctx, tx, there); err != nil {
		return err
	}
	if _, err = tx.Exec(ctx, head+"END $do$;", pgx.QueryExecModeSimpleProtocol); err != nil {
		return &StepError{Schema: s.schema, From: there.version, To: there.version + 1, Err: err}
	}
	return nil
}

// prepare makes the schema if it is missing, and makes it the one in which the files work.
func (s session) prepare(ctx context.Context, tx pgx.Tx, there found) error {
	name := pgx.Identifier{s.schema}.Sanitize()
	if !there.schema {
		sql := "CREATE SCHEMA " + name + "; COMMENT ON SCHEMA " + name + " IS '" + ownComment + "'"
		if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		if err := dismiss(ctx, tx, "SCHEMA", name, "SELECT nspacl, nspowner FROM pg_catalog.pg_namespace WHERE oid = "+
			"$1::pg_catalog.text::pg_catalog.regnamespace"); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "SET LOCAL search_path = "+name+", pg_temp")
	return err
}

// alone runs f in a transaction during which nobody else migrates this schema, and passes it the state that it finds.
// Other programs with this package wait for the first lock, golang-migrate's own driver for the second. sent means
// that the transaction may have been committed despite an error.
func (s session) alone(ctx context.Context, f func(pgx.Tx, found) error) (sent bool, err error) {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return false, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit, or on a connection that is closed
	if err := s.takeTurn(ctx, tx); err != nil && ctx.Err() != nil {
		return false, fmt.Errorf("%w: %w", ErrBusy, err)
	} else if err != nil {
		return false, err
	}
	there, err := s.look(ctx, tx)
	if err != nil {
		return false, err
	}
	if err := f(tx, there); err != nil {
		return false, err
	}
	err = tx.Commit(ctx)
	var refused *pgconn.PgError
	return err != nil && !errors.As(err, &refused) && !errors.Is(err, pgx.ErrTxCommitRollback), err
}

func (s session) takeTurn(ctx context.Context, tx pgx.Tx) error {
	var name string
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", "pglock migrations "+s.schema)
	if err == nil {
		err = tx.QueryRow(ctx, "SELECT current_database()").Scan(&name)
	}
	if err != nil {
		return err
	}
	theirs, err := database.GenerateAdvisoryLockId(name, s.schema, versionTable)
	if err == nil {
		_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::text::bigint)", theirs)
	}
	return err
}

// patience limits how long resolve asks the server.
const patience = 5 * time.Second

// resolve asks the server what became of a step whose COMMIT was not answered, and reports whether it was done.
func (c config) resolve(ctx context.Context, to target, step *StepError) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := c.connected(ctx, to, func(s session) error {
		_, err := s.alone(ctx, func(_ pgx.Tx, there found) error { // its session may still be working
			step.Unknown, done = false, there.version != step.From
			return nil
		})
		return err
	})
	return err == nil && done
}
