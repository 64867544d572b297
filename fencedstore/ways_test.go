package fencedstore_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// transaction is what both kinds of callbacks can do in the tests here.
type transaction interface {
	exec(ctx context.Context, sql string, args ...any) error
	commit(ctx context.Context) error
	rollback(ctx context.Context) error
}

type pgxTransaction struct{ pgx.Tx }

func (t pgxTransaction) exec(ctx context.Context, sql string, args ...any) error {
	_, err := t.Exec(ctx, sql, args...)
	return err
}
func (t pgxTransaction) commit(ctx context.Context) error   { return t.Commit(ctx) }
func (t pgxTransaction) rollback(ctx context.Context) error { return t.Rollback(ctx) }

type sqlTransaction struct{ *sql.Tx }

func (t sqlTransaction) exec(ctx context.Context, sql string, args ...any) error {
	_, err := t.ExecContext(ctx, sql, args...)
	return err
}
func (t sqlTransaction) commit(context.Context) error   { return t.Commit() }
func (t sqlTransaction) rollback(context.Context) error { return t.Rollback() }

// work is what a write does in the tests here, through whatever the way of writing hands out.
type work func(ctx context.Context, tx transaction) error

// does is the work of one statement.
func does(sql string, args ...any) work {
	return func(ctx context.Context, tx transaction) error { return tx.exec(ctx, sql, args...) }
}

func sleeps(seconds float64) work { return does(`SELECT pg_sleep($1)`, seconds) }

func inTx(do work) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error { return do(ctx, pgxTransaction{tx}) }
}

func inSQL(do work) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error { return do(ctx, sqlTransaction{tx}) }
}

func nothing(context.Context, pgx.Tx) error { return nil }

// way is one way to write under a fence.
type way func(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error

// ways are all of them.
var ways = map[string]way{
	"Write": written, "Write of several": ofSeveral(written), "Once": once,
	"WriteSQL": writtenSQL, "WriteSQL of several": ofSeveral(writtenSQL), "OnceSQL": onceSQL,
	"Guard": guarded, "Guard of several": ofSeveral(guarded), "Guard of a key": ofAKey(guarded),
	"GuardSQL": guardedSQL, "GuardSQL of several": ofSeveral(guardedSQL), "GuardSQL of a key": ofAKey(guardedSQL),
}

// ofSeveral is the way under two fences of the lease.
func ofSeveral(w way) way {
	return func(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error {
		return w(t, b, several(fenced.(*pglock.Lease)), do, opts...)
	}
}

func several(l *pglock.Lease) fencedstore.Fences {
	return fencedstore.Fences{{Lease: l}, {Lease: l, Resource: l.Name() + "/other"}}
}

func ofAKey(w way) way {
	return func(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error {
		return w(t, b, fenced, do, append(opts, fencedstore.WithKey(t.Name()))...)
	}
}

func written(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error {
	return b.store.With(opts...).Write(t.Context(), fenced, inTx(do))
}

func once(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error {
	return b.store.With(opts...).Once(t.Context(), fenced, t.Name(), inTx(do))
}

func writtenSQL(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error {
	return fencedstore.NewSQL(b.sqlDB).With(opts...).Write(t.Context(), fenced, inSQL(do))
}

func onceSQL(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error {
	return fencedstore.NewSQL(b.sqlDB).With(opts...).Once(t.Context(), fenced, t.Name(), inSQL(do))
}

// guarded calls Guard as the documentation says: the guard first, the seal last, and Explain.
func guarded(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error {
	return pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		g, err := fencedstore.Guard(t.Context(), tx, fenced, opts...)
		if err != nil {
			return err
		}
		if err := inTx(do)(t.Context(), tx); err != nil {
			return g.Explain(err)
		}
		return g.Explain(g.Seal(t.Context()))
	})
}

func guardedSQL(t *testing.T, b *bench, fenced fencedstore.Fenced, do work, opts ...fencedstore.Option) error {
	tx, err := b.sqlDB.BeginTx(t.Context(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	g, err := fencedstore.GuardSQL(t.Context(), tx, fenced, opts...)
	if err != nil {
		return err
	}
	if err := inSQL(do)(t.Context(), tx); err != nil {
		return g.Explain(err)
	}
	if err := g.Seal(t.Context()); err != nil {
		return g.Explain(err)
	}
	return g.Explain(tx.Commit())
}

// tried says whether this tier has a way: in the short tier one of each kind, by pgx or by database/sql.
func tried(name string) bool {
	return pgtest.Among(name, "Write", "WriteSQL of several", "OnceSQL", "GuardSQL", "Guard of several",
		"Guard of a key")
}

// isGuard says of a way that it does not hear of the end of its transaction.
func isGuard(name string) bool { return strings.HasPrefix(name, "Guard") }
