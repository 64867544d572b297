package migrations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
)

type session struct {
	config
	conn *pgx.Conn
}

const versionTable = "pglock_schema_migrations"

type connector func(context.Context) (*pgx.Conn, error)

// parse returns what connects to the database. It prepares no statements: a pooler that shares connections loses them.
func parse[D Database](database D) (connector, error) {
	var config *pgx.ConnConfig
	var before func(context.Context, *pgx.ConnConfig) error
	switch d := any(database).(type) {
	case string:
		pool, err := pgxpool.ParseConfig(d) // which pglock.Open takes, too
		if err != nil {
			return nil, failure.Told(err, "migrations: read the connection string") // pgx leaves passwords out
		}
		config = pool.ConnConfig
	case *pgxpool.Pool:
		if d != nil {
			return parse(d.Config())
		}
	case *pgx.Conn:
		if d != nil {
			config = d.Config()
		}
	case *pgxpool.Config:
		if d != nil {
			config, before = d.ConnConfig, d.BeforeConnect
		}
	case *pgx.ConnConfig:
		config = d
	}
	if config == nil || !argument.Parsed(config) {
		return nil, fmt.Errorf("%w: database is a %T that is nil or made by hand: it must be made by pgx", ErrInvalid,
			database)
	}
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	argument.NameApplication(config.RuntimeParams)
	return func(ctx context.Context) (*pgx.Conn, error) {
		config := config.Copy()
		if before != nil {
			if err := before(ctx, config); err != nil {
				return nil, err
			}
		}
		return pgx.ConnectConfig(ctx, config)
	}, nil
}

func (c config) connected(ctx context.Context, connect connector, f func(session) error) error {
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = conn.Close(context.WithoutCancel(ctx)) // nothing is lost
		// until the server has heard that ctx has ended, it goes on waiting for locks
		select {
		case <-conn.PgConn().CleanupDone():
		case <-time.After(2 * time.Second):
		}
	}()
	return f(session{c, conn})
}

// up runs one step after another, each in its own transaction. It leaves a current schema alone.
func (s session) up(ctx context.Context) error {
	there, err := s.look(ctx, s.conn)
	if err != nil {
		return err
	}
	current := func(f found) bool { return f.version == s.latest && !(f.outdated() && f.mayChange && f.mayRun) }
	for done := current(there); !done; {
		err := s.alone(ctx, func(tx pgx.Tx, there found) (int, error) {
			if done = current(there); done {
				return there.version, nil
			}
			if there.version == s.latest {
				return there.version, note(ctx, tx, s.quoted(versionTable), there.version)
			}
			if err := s.check(there); err != nil {
				return there.version, err
			}
			return there.version + 1, s.step(ctx, tx, there, 1)
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
	if err := cmp.Or(s.check(there), s.checkCode(there)); err != nil {
		return err
	}
	if err := s.refuseGuarded(ctx); err != nil {
		return err
	}
	for done := false; !done; {
		err := s.alone(ctx, func(tx pgx.Tx, there found) (to int, err error) {
			if err := cmp.Or(s.check(there), s.checkCode(there)); err != nil {
				return there.version, err
			}
			if _, err := tx.Exec(ctx, inNobodysWay); err != nil {
				return there.version, err
			}
			done = there.version <= 1
			if there.made {
				to, err = there.version-1, s.step(ctx, tx, there, -1)
			}
			if err == nil && done && there.schema {
				err = s.dropRest(ctx, tx, there)
			}
			return to, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// inNobodysWay limits how long a step down waits for a lock, or may stand still: programs queue behind it. A lower
// limit of the session stays.
const inNobodysWay = `SELECT set_config(name, '5000', true) FROM pg_settings
	WHERE name IN ('lock_timeout', 'idle_in_transaction_session_timeout')
		AND setting::int NOT BETWEEN 1 AND 5000`

func (s session) force(ctx context.Context, version int) error {
	return s.alone(ctx, func(tx pgx.Tx, there found) (int, error) {
		err := s.check(there)
		_, dirty := errors.AsType[*DirtyError](err)
		switch {
		case err != nil && !dirty:
			return there.version, err
		case there.version != version && there.version == 0:
			return 0, fmt.Errorf("%w: version is %d: it must be 0, because schema %q is missing", ErrInvalid, version,
				s.schema)
		case there.version != version:
			return there.version, fmt.Errorf("%w: version is %d: it must be %d, which schema %q says it has",
				ErrInvalid, version, there.version, s.schema)
		case !there.table:
			return version, nil
		}
		if err := s.checkCode(there); err != nil {
			return there.version, err
		}
		return version, note(ctx, tx, s.quoted(versionTable), version)
	})
}

// step runs the next file. It refuses a file that does not change the version that the schema reports: it would run
// for ever.
func (s session) step(ctx context.Context, tx pgx.Tx, there found, by int) error {
	err := s.prepare(ctx, tx, there)
	if err == nil { // before the file, which sees to the rights on it
		err = execute(ctx, tx, "CREATE TABLE IF NOT EXISTS "+s.quoted(versionTable)+
			" (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL)")
	}
	if err == nil {
		err = s.run(ctx, tx, there, by, false)
	}
	if err != nil {
		return err
	}
	after, err := s.look(ctx, tx.Conn())
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
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it has done nothing
	if err := s.prepare(ctx, tx, there); err != nil {
		return err
	}
	if err := s.run(ctx, tx, there, 1, true); err != nil {
		return &StepError{Schema: s.schema, From: there.version, To: there.version + 1, Err: err}
	}
	return nil
}

// prepare makes the schema if it is missing, and makes it the one in which the files work.
func (s session) prepare(ctx context.Context, tx pgx.Tx, there found) error {
	name := pgx.Identifier{s.schema}.Sanitize()
	sql := "SET LOCAL search_path = " + name + ", pg_temp"
	if !there.schema {
		sql = "CREATE SCHEMA " + name + "; COMMENT ON SCHEMA " + name + " IS '" + ownComment + "'; " + sql + dismissal
	}
	return execute(ctx, tx, sql)
}

// dismissal takes from everybody but its owner what default privileges have given them on a new schema. The files see
// to what is in it.
const dismissal = `; DO $$
DECLARE
	change text;
BEGIN
	FOR change IN
		SELECT format('REVOKE ALL ON SCHEMA %I FROM %s', n.nspname,
			CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
		FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = current_schema() AND a.grantee <> n.nspowner
	LOOP
		EXECUTE change;
	END LOOP;
END $$`

// alone runs f in a transaction during which nobody else migrates this schema, and passes it the state that it finds. f
// returns the version to which it leads. Other programs with this package wait for the first lock, golang-migrate's own
// driver for the second.
func (s session) alone(ctx context.Context, f func(pgx.Tx, found) (to int, err error)) error {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit, or on a connection that is closed
	if err := s.takeTurn(ctx, tx); err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	} else if err != nil {
		return err
	}
	there, err := s.look(ctx, tx.Conn())
	if err != nil {
		return err
	}
	to, err := f(tx, there)
	sent := err == nil
	if sent {
		err = tx.Commit(ctx)
	}
	if err == nil || to == there.version {
		return err
	}
	// A server that ends the connection may have committed before, and so may one that was to cancel the statement.
	pgErr, is := errors.AsType[*pgconn.PgError](err)
	refused := is && pgErr.SeverityUnlocalized == "ERROR" && pgErr.Code != "57014"
	return &StepError{Schema: s.schema, From: there.version, To: to, Err: err,
		Unknown: sent && !refused && !errors.Is(err, pgx.ErrTxCommitRollback)}
}

// takeTurn waits for the others as long as ctx allows. The user's own time limits count for the work, and not for the
// wait.
func (s session) takeTurn(ctx context.Context, tx pgx.Tx) error {
	var limits, name string
	err := tx.QueryRow(ctx, `SELECT pg_catalog.json_object_agg(name, setting)::text FROM pg_settings
		WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout')`).Scan(&limits)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf(setLimits, "'0'"), limits); err != nil {
		return err
	}
	err = tx.QueryRow(ctx, "SELECT current_database() FROM pg_advisory_xact_lock("+
		"pg_catalog.hashtextextended($1, 0))", "pglock migrations "+s.schema).Scan(&name)
	if err != nil {
		return err
	}
	theirs, err := database.GenerateAdvisoryLockId(name, s.schema, versionTable)
	if err == nil {
		_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::text::bigint)", theirs)
	}
	if err == nil {
		_, err = tx.Exec(ctx, fmt.Sprintf(setLimits, "value"), limits)
	}
	return err
}

const setLimits = `SELECT set_config(key, %s, true) FROM json_each_text($1::text::json)`

// patience limits how long resolve asks the server.
const patience = 5 * time.Second

// resolve asks the server what became of a step whose COMMIT was not answered, and reports whether it was done.
func (c config) resolve(ctx context.Context, connect connector, step *StepError) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := c.connected(ctx, connect, func(s session) error {
		return s.alone(ctx, func(_ pgx.Tx, there found) (int, error) { // its session may still be working
			step.Unknown, done = false, there.version != step.From
			return there.version, nil
		})
	})
	return err == nil && done
}
