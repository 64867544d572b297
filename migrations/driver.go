package migrations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
)

// driver is golang-migrate's view of a transaction that others begin, commit, and guard against other migrations.
// golang-migrate's own driver notes a version, runs the step and notes the version again in three transactions, so
// that a failed step leaves a dirty mark. Here the three are one.
type driver struct {
	ctx     context.Context //nolint:containedctx // golang-migrate passes none on
	tx      pgx.Tx
	table   string // quoted
	version int
}

// oneStep runs the next file up or down.
func oneStep(d *driver, c config, by int) error {
	source, err := iofs.New(c.source, ".")
	if err != nil {
		return err
	}
	m, err := migrate.NewWithInstance("embedded", source, "pglock", d)
	if err != nil {
		return errors.Join(err, source.Close())
	}
	err = m.Steps(by) // only one: of several, golang-migrate leaves goroutines behind when one fails
	sourceErr, driverErr := m.Close()
	return errors.Join(err, sourceErr, driverErr)
}

func (d *driver) Run(step io.Reader) error {
	sql, err := io.ReadAll(step)
	if err != nil {
		return err
	}
	_, err = d.tx.Exec(d.ctx, string(sql), pgx.QueryExecModeSimpleProtocol) // many statements
	return err
}

func (d *driver) Version() (version int, dirty bool, err error) {
	if d.version == 0 {
		return database.NilVersion, false, nil
	}
	return d.version, false, nil
}

// SetVersion notes the version that a step has reached. Nobody could see a dirty mark before it.
func (d *driver) SetVersion(version int, dirty bool) error {
	if dirty {
		return nil
	}
	d.version = max(version, 0)
	return note(d.ctx, d.tx, d.table, d.version)
}

// note replaces the contents of golang-migrate's table, in a form that its own driver reads.
func note(ctx context.Context, tx pgx.Tx, table string, version int) error {
	_, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (version bigint NOT NULL PRIMARY KEY, dirty boolean "+
		"NOT NULL)")
	if err == nil {
		err = dismiss(ctx, tx, "TABLE", table, "SELECT c.relacl, c.relowner FROM pg_catalog.pg_class c WHERE c.oid = "+
			"$1::pg_catalog.text::pg_catalog.regclass")
	}
	if err != nil {
		return err
	}
	sql := "DELETE FROM " + table
	if version > 0 {
		sql += fmt.Sprintf("; INSERT INTO %s VALUES (%d, false)", table, version)
	}
	_, err = tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// dismiss takes from everybody but its owner what default privileges have given them on a new object. The query
// returns its rights and its owner.
func dismiss(ctx context.Context, tx pgx.Tx, kind, name, query string) error {
	rows, err := tx.Query(ctx,
		`SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::pg_catalog.regrole::pg_catalog.text END
		FROM (`+query+`) o (acl, owner) CROSS JOIN LATERAL pg_catalog.aclexplode(o.acl) a WHERE a.grantee <> o.owner`,
		name)
	if err != nil {
		return err
	}
	roles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(roles) == 0 {
		return err
	}
	_, err = tx.Exec(ctx, "REVOKE ALL ON "+kind+" "+name+" FROM "+strings.Join(roles, ", "))
	return err
}

func (d *driver) Lock() error   { return nil }
func (d *driver) Unlock() error { return nil }
func (d *driver) Close() error  { return nil }

var errNotHere = errors.New("migrations: not in this driver")

func (d *driver) Open(string) (database.Driver, error) { return nil, errNotHere }
func (d *driver) Drop() error                          { return errNotHere }
