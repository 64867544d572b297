package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// A write within the callback of a write of the same resource, or of the same key, would wait for itself until its time
// limit: it is refused at once, and told for which. One that waits for nothing of the write around it is made.
func TestAWriteThatWouldWaitForItselfIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	l := b.acquire(t, "report")
	other := b.acquire(t, "other")
	of := func(resource string) fencedstore.Fence {
		return fencedstore.Fence{Lease: l, Resource: resource, SameToken: true}
	}
	limited := fencedstore.WithTimeLimit(pglock.MinTTL)
	store, sqlStore := b.store.With(limited), fencedstore.NewSQL(b.sqlDB).With(limited)
	type write = func(context.Context, fencedstore.Fenced, func(context.Context) error) error
	in := func(ctx context.Context, fenced fencedstore.Fenced, do func(context.Context) error) error {
		return b.store.Write(ctx, fenced, func(ctx context.Context, _ pgx.Tx) error { return do(ctx) })
	}
	inSQL := func(ctx context.Context, fenced fencedstore.Fenced, do func(context.Context) error) error {
		return fencedstore.NewSQL(b.sqlDB).Write(ctx, fenced,
			func(ctx context.Context, _ *sql.Tx) error { return do(ctx) })
	}
	once := func(key string) write {
		return func(ctx context.Context, fenced fencedstore.Fenced, do func(context.Context) error) error {
			return b.store.Once(ctx, fenced, key, func(ctx context.Context, _ pgx.Tx) error { return do(ctx) })
		}
	}
	pair := fencedstore.Fences{of("a"), of("b")}
	for name, c := range map[string]struct {
		around write
		outer  fencedstore.Fenced
		inner  func(context.Context) error
		says   string // "": it is written
	}{
		"the lease's resource": {in, fencedstore.Fence{Lease: l, SameToken: true}, func(ctx context.Context) error {
			return store.Write(ctx, of(""), nothing)
		}, `resource is "report"`},
		"through database/sql": {inSQL, of("sql"), func(ctx context.Context) error {
			return sqlStore.Write(ctx, of("sql"), func(context.Context, *sql.Tx) error { return nil })
		}, `resource is "sql"`},
		"another store": {inSQL, of("stores"), func(ctx context.Context) error {
			return store.Write(ctx, of("stores"), nothing)
		}, `resource is "stores"`},
		"one of several": {in, pair, func(ctx context.Context) error {
			return store.Write(ctx, fencedstore.Fences{of("c"), of("b")}, nothing)
		}, `resource is "b"`},
		"of a write further out": {in, of("out"), func(ctx context.Context) error {
			return in(ctx, of("between"), func(ctx context.Context) error {
				return store.Write(ctx, of("out"), nothing)
			})
		}, `resource is "out"`},
		"the key": {once("the key"), of("key"), func(ctx context.Context) error {
			return store.Once(ctx, other, "the key", nothing)
		}, `key is "the key"`},
		"the fence of another key": {once("one key"), of("keys"), func(ctx context.Context) error {
			return store.Once(ctx, of("keys"), "another key", nothing)
		}, `resource is "keys"`},
		"another resource": {in, of("one"), func(ctx context.Context) error {
			return b.store.Write(ctx, of("another"), nothing)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inner error
			if err := c.around(t.Context(), c.outer, func(ctx context.Context) error {
				inner = c.inner(ctx)
				return nil
			}); err != nil {
				t.Errorf("the write around it: %v", err)
			}
			if c.says == "" && inner != nil || c.says != "" &&
				(!errors.Is(inner, pglock.ErrInvalid) || !strings.Contains(inner.Error(), c.says)) {
				t.Errorf("%v, want %q", inner, c.says)
			}
		})
	}
}

// What outlives the callback may write, as nothing waits for it; so may a write of a resource of another database.
func TestAWriteThatWaitsForNothingAroundItIsNotRefused(t *testing.T) {
	t.Parallel()
	b, elsewhere := newBench(t), newBench(t)
	fence := fencedstore.Fence{Lease: b.acquire(t, "report"), SameToken: true}
	same := elsewhere.acquire(t, "report")
	var kept context.Context
	must.Do(t, b.store.Write(t.Context(), fence, func(ctx context.Context, _ pgx.Tx) error {
		kept = context.WithoutCancel(ctx)
		return elsewhere.store.Write(ctx, same, nothing)
	}))
	must.Do(t, b.store.Write(kept, fence, nothing))
}
