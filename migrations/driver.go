package migrations

import (
	"context"
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
	database.Driver                 // nil: a step calls nothing else of it
	ctx             context.Context //nolint:containedctx // golang-migrate passes none on
	tx              pgx.Tx
	table           string // quoted
	before          int    // the version
	head            bool   // run only the checks with which the file begins, and note nothing
}

func (s session) run(ctx context.Context, tx pgx.Tx, there found, by int, head bool) error {
	source, err := iofs.New(s.source, ".")
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // it has only been read
	m, err := migrate.NewWithInstance("embedded", source, "pglock", &driver{ctx: ctx, tx: tx,
		table: s.quoted(versionTable), before: there.version, head: head})
	if err != nil {
		return err
	}
	return m.Steps(by) // only one: of several, golang-migrate leaves goroutines behind when one fails
}

func (d *driver) Lock() error   { return nil }
func (d *driver) Unlock() error { return nil }

func (d *driver) Version() (version int, dirty bool, err error) {
	if d.before == 0 {
		return database.NilVersion, false, nil
	}
	return d.before, false, nil
}

func (d *driver) Run(step io.Reader) error {
	all, err := io.ReadAll(step)
	if err != nil {
		return err
	}
	sql := string(all)
	if head, _, found := strings.Cut(sql, endOfHead); d.head && found {
		sql = head + endOfHead
	} else if d.head {
		return nil
	}
	return execute(d.ctx, d.tx, sql)
}

// endOfHead ends the checks with which a file begins.
const endOfHead = "END $do$;"

// SetVersion notes the version that a step has reached. Nobody could see a dirty mark before it.
func (d *driver) SetVersion(version int, dirty bool) error {
	if dirty || d.head {
		return nil
	}
	return note(d.ctx, d.tx, d.table, version)
}

// note replaces the contents of golang-migrate's table, in a form that its own driver reads.
func note(ctx context.Context, tx pgx.Tx, table string, version int) error {
	sql := "DELETE FROM " + table
	if version > 0 {
		sql += fmt.Sprintf("; INSERT INTO %s VALUES (%d, false)", table, version)
	}
	return execute(ctx, tx, sql)
}

// execute runs any number of statements.
func execute(ctx context.Context, tx pgx.Tx, sql string) error {
	_, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}
