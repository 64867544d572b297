package fencedstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// otherDriver is a driver that has errors of its own, and shows no connection of pgx.
type otherDriver struct {
	driver.Connector
	tells func(*pgconn.PgError) error
}

func (d otherDriver) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := d.Connector.Connect(ctx)
	if err != nil {
		return nil, d.tell(err)
	}
	return otherConn{conn, d}, nil
}

func (d otherDriver) tell(err error) error {
	if e, is := errors.AsType[*pgconn.PgError](err); is {
		return d.tells(e)
	}
	return err
}

type otherConn struct {
	driver.Conn
	of otherDriver
}

func (c otherConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
	return otherTx{tx, c.of}, c.of.tell(err)
}

func (c otherConn) ExecContext(ctx context.Context, sql string, args []driver.NamedValue) (driver.Result, error) {
	result, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, sql, args)
	return result, c.of.tell(err)
}

func (c otherConn) QueryContext(ctx context.Context, sql string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, sql, args)
	return rows, c.of.tell(err)
}

type otherTx struct {
	driver.Tx
	of otherDriver
}

func (tx otherTx) Commit() error { return tx.of.tell(tx.Tx.Commit()) }

// pgx4Error is an error as version 4 of pgx has it.
type pgx4Error struct{ Severity, Code, Message, Detail, ColumnName, ConstraintName string }

func (e *pgx4Error) Error() string    { return e.Severity + ": " + e.Message }
func (e *pgx4Error) SQLState() string { return e.Code }

// bareError is one that has an SQLSTATE and a text.
type bareError struct{ state, text string }

func (e bareError) Error() string    { return e.text }
func (e bareError) SQLState() string { return e.state }

// otherDrivers are drivers whose errors have the fields of pgx, and no fields.
var otherDrivers = map[string]func(*pgconn.PgError) error{
	"as pgx 4": func(e *pgconn.PgError) error {
		return &pgx4Error{e.Severity, e.Code, e.Message, e.Detail, e.ColumnName, e.ConstraintName}
	},
	"an SQLSTATE alone": func(e *pgconn.PgError) error { return bareError{e.Code, e.Message} },
}

// open opens the database through a driver with such errors.
func (b *bench) open(t *testing.T, tells func(*pgconn.PgError) error, change func(*pgx.ConnConfig)) *sql.DB {
	t.Helper()
	config := must.Get(pgx.ParseConfig(b.db.URL()))(t)
	change(config)
	db := sql.OpenDB(otherDriver{stdlib.GetConnector(*config), tells})
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// What a driver does not tell of an error is no reason to take a write that was committed for one that was refused, nor
// the other way round.
func TestI17_AnErrorAtCommitMeansTheSameWhateverADriverTellsOfIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE ledger (of text UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	for how, tells := range otherDrivers {
		var armed atomic.Bool
		store := fencedstore.NewSQL(b.open(t, tells, func(config *pgx.ConnConfig) {
			crashes(config, &crashing{severity: "FATAL", state: "XX000", armed: &armed})
		}))
		err := store.Write(t.Context(), b.acquire(t, how), func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO ledger VALUES ($1)`, how)
			armed.Store(true)
			return err
		})
		if n := b.number(t, `SELECT count(*) FROM ledger WHERE of = $1`, how); err != nil || n != 1 || armed.Load() {
			t.Errorf("I17: %s: the write says %v, and %d rows are there; cut off: %v", how, err, n, !armed.Load())
		}
		err = store.Write(t.Context(), b.acquire(t, how+", again"), inSQL(does(`INSERT INTO ledger VALUES ($1)`, how)))
		if protocol.State(err) != "23505" || errors.Is(err, pglock.ErrOutcomeUnknown) {
			t.Errorf("I17: %s: a refusal says %v", how, err)
		}
	}
}

// A lease is named as lost only where the driver says which one.
func TestNoLeaseIsBlamedForTheLossOfAnother(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for how, tells := range otherDrivers {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			knows := how == "as pgx 4"
			store := fencedstore.NewSQL(b.open(t, tells, func(*pgx.ConnConfig) {}))
			none := inSQL(func(context.Context, transaction) error { return nil })
			held, broken, once := b.acquire(t, "held "+how), b.acquire(t, "broken "+how), b.acquire(t, "once "+how)
			b.breaks(t, broken)
			of := func(err error, is error, name string) {
				t.Helper()
				if !errors.Is(err, is) || !strings.Contains(err.Error(), name) {
					t.Errorf("%v, want %v that names %q", err, is, name)
				}
			}
			err := store.Write(t.Context(), fencedstore.Fences{{Lease: held}, {Lease: broken}}, none)
			of(err, pglock.ErrLost, broken.Name())
			lost, is := errors.AsType[*pglock.LostError](err)
			if is != knows || is && (lost.Lock != broken.Name() || lost.Token != broken.Token() ||
				lost.Reason != pglock.ReasonBroken) {
				t.Errorf("lost: %+v", lost)
			}
			err = store.Write(t.Context(), broken, none)
			of(err, pglock.ErrLost, broken.Name())
			want := pglock.ReasonUnknown
			if knows {
				want = pglock.ReasonBroken
			}
			if lost, is := errors.AsType[*pglock.LostError](err); !is || lost.Reason != want {
				t.Errorf("lost: %+v, want reason %q", lost, want)
			}

			must.Do(t, store.Write(t.Context(), once, none))
			err = store.Write(t.Context(), fencedstore.Fences{{Lease: held}, {Lease: once}}, none)
			of(err, fencedstore.ErrStaleToken, once.Name())
			stale, is := errors.AsType[*fencedstore.StaleTokenError](err)
			if is != knows || is && *stale != (fencedstore.StaleTokenError{Resource: once.Resource(),
				Token: once.Token(), LastToken: once.Token()}) {
				t.Errorf("stale: %+v", stale)
			}
			err = store.Write(t.Context(), once, none)
			of(err, fencedstore.ErrStaleToken, once.Name())
			if strings.Contains(err.Error(), "token 0") {
				t.Errorf("it names a token that nobody has: %v", err)
			}
		})
	}
}

// Nor is the lease of a write, where the callback has passed the fence of another lease by itself.
func TestAWriteDoesNotCallItsLeaseLostForAnotherInItsTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lease, other := b.acquire(t, "its own"), b.acquire(t, "another")
	err := b.store.Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
		_, err := fencedstore.Guard(ctx, tx, other)
		b.breaks(t, other)
		return err
	})
	lost, is := errors.AsType[*pglock.LostError](err)
	if !errors.Is(err, pglock.ErrLost) || !strings.Contains(err.Error(), "another") || is && lost.Lock != "another" {
		t.Errorf("%v, %+v", err, lost)
	}
	if !lease.Valid() {
		t.Error("the lease has ended")
	}
}
