package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// bench is what the tests work with.
type bench struct {
	db     *pgtest.DB
	pool   *pgxpool.Pool
	sqlDB  *sql.DB // the database through database/sql
	client *pglock.Client
	store  *fencedstore.Store
}

func newBench(t *testing.T, opts ...pglock.Option) *bench {
	t.Helper()
	db := pgtest.Database(t)
	return newBenchOn(t, db, opts...)
}

func newBenchOn(t *testing.T, db *pgtest.DB, opts ...pglock.Option) *bench {
	t.Helper()
	config := must.Get(pgx.ParseConfig(db.URL()))(t)
	pool := db.Pool(t)
	b := bench{db: db, pool: pool, sqlDB: stdlib.OpenDB(*config), store: fencedstore.New(pool)}
	t.Cleanup(func() { _ = b.sqlDB.Close() })
	return b.withClient(t, opts...)
}

// withClient is the same bench with a client of its own.
func (b bench) withClient(t *testing.T, opts ...pglock.Option) *bench {
	t.Helper()
	c := must.Get(pglock.New(t.Context(), b.pool, append(opts, pglock.WithDefaultTTL(time.Hour))...))(t)
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	b.client = c
	return &b
}

// through is the same bench with a pool, and so a client and a store, of its own.
func (b bench) through(t *testing.T, change func(*pgxpool.Config)) *bench {
	t.Helper()
	b.pool = b.db.Pool(t, change)
	b.store = fencedstore.New(b.pool)
	return b.withClient(t)
}

func (b *bench) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (b *bench) acquire(t *testing.T, name string, opts ...pglock.AcquireOption) *pglock.Lease {
	t.Helper()
	l := must.Get(b.client.TryAcquire(t.Context(), name, opts...))(t)
	return l
}

// begin begins a transaction, and rolls it back at the end of the test unless that has ended it.
func (b *bench) begin(t *testing.T) pgx.Tx {
	t.Helper()
	tx := must.Get(b.pool.Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

func (b *bench) beginSQL(t *testing.T) *sql.Tx {
	t.Helper()
	tx := must.Get(b.sqlDB.BeginTx(context.WithoutCancel(t.Context()), nil))(t)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// breaks breaks a lease as an operator does.
func (b *bench) breaks(t *testing.T, l *pglock.Lease) {
	t.Helper()
	admin, err := lockadmin.New(t.Context(), b.pool)
	if err == nil {
		_, err = admin.Break(t.Context(), l.Name(), "a test", lockadmin.BreakOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func release(t *testing.T, l *pglock.Lease) {
	t.Helper()
	must.Do(t, l.Release(t.Context()))
}

func (b *bench) guard(t *testing.T, table string, opts ...fencedstore.TableOption) {
	t.Helper()
	must.Do(t, fencedstore.GuardTable(t.Context(), b.pool, table, opts...))
}

// write writes under the fence of the resource, in one transaction.
func (b *bench) write(t *testing.T, l *pglock.Lease, resource, sql string, args ...any) error {
	t.Helper()
	return b.store.Write(t.Context(), fencedstore.Fence{Lease: l, Resource: resource, SameToken: true},
		inTx(does(sql, args...)))
}

func (b *bench) number(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	if err := b.pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// wantRows fails the test unless a table, or a part of it, has so many rows.
func (b *bench) wantRows(t *testing.T, want int, from string) {
	t.Helper()
	if n := b.number(t, `SELECT count(*) FROM `+from); n != want {
		t.Errorf("%d rows of %s, want %d", n, from, want)
	}
}

func code(err error) string {
	if pgErr, is := errors.AsType[*pgconn.PgError](err); is {
		return pgErr.Code
	}
	return ""
}

// warm opens the heartbeat's connection: on a busy machine that may take as long as a third of a short TTL.
func (b *bench) warm(t *testing.T) *bench {
	t.Helper()
	l := b.acquire(t, "warm")
	_, err := l.Extend(t.Context(), pglock.MinTTL)
	if err == nil {
		err = l.Release(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newWideBench is a bench for many writes at once.
func newWideBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.pool = b.db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 40 })
	b.store = fencedstore.New(b.pool)
	return b.warm(t)
}

// left is how long the lock is taken for, by the server's clock.
func (b *bench) left(t *testing.T, name string) time.Duration {
	t.Helper()
	return time.Duration(b.number(t,
		`SELECT coalesce((extract(epoch FROM max(expires_at) - clock_timestamp()) * 1000)::int, 0)
		FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp()`, name)) * time.Millisecond
}
