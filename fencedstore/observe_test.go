package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/fencedstore/reversible"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// observed keeps the events of writes.
type observed struct {
	mu     sync.Mutex
	events []pglock.Event
	values []any // of the contexts, under contextKey
}

type contextKey struct{}

func (o *observed) Observe(ctx context.Context, e pglock.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch e.Kind {
	case pglock.EventWrite, pglock.EventStale, pglock.EventRefused, pglock.EventOutcomeUnknown:
		o.events, o.values = append(o.events, e), append(o.values, ctx.Value(contextKey{}))
	}
}

// words are the kinds and the resources of the events.
func (o *observed) words() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.events {
		all = append(all, fmt.Sprint(e.Kind, ": ", e.Resource))
	}
	return all
}

func TestEachEndOfAWriteIsObserved(t *testing.T) {
	t.Parallel()
	type scene struct {
		*bench
		ctx   context.Context
		l     *pglock.Lease
		admin *lockadmin.Admin
	}
	within := func(f func(s scene, tx pgx.Tx) error) func(t *testing.T, s scene) error {
		return func(t *testing.T, s scene) error {
			t.Helper()
			tx := must.Get(s.pool.Begin(s.ctx))(t)
			defer func() { _ = tx.Rollback(s.ctx) }()
			return f(s, tx)
		}
	}
	breaks := func(s scene) error {
		_, err := s.admin.Break(s.ctx, "report", "a test", lockadmin.BreakOptions{})
		return err
	}
	b := newBench(t)
	for what, c := range map[string]struct {
		do   func(t *testing.T, s scene) error
		is   error
		want []string
	}{
		"committed": {func(t *testing.T, s scene) error {
			return s.store.Write(s.ctx, s.l, nothing)
		}, nil, []string{"write: report"}},
		"committed through database/sql": {func(t *testing.T, s scene) error {
			return fencedstore.NewSQL(s.sqlDB).Write(s.ctx, s.l, func(context.Context, *sql.Tx) error { return nil })
		}, nil, []string{"write: report"}},
		"committed under two fences": {func(t *testing.T, s scene) error {
			return s.store.Write(s.ctx, fencedstore.Fences{{Lease: s.l}, {Lease: s.l, Resource: "other"}}, nothing)
		}, nil, []string{"write: report", "write: other"}},
		"once": {func(t *testing.T, s scene) error {
			if err := s.store.Once(s.ctx, s.l, "key", nothing); err != nil {
				return err
			}
			return s.store.Once(s.ctx, s.l, "key", nothing)
		}, fencedstore.ErrDone, []string{"write: report"}},
		"reversible": {func(t *testing.T, s scene) error {
			no := func(context.Context) error { return nil }
			return reversible.Run(s.ctx, s.l, reversible.Operation{Apply: no, Restore: no})
		}, nil, []string{"write: report"}},
		"written twice": {func(t *testing.T, s scene) error {
			if err := s.store.Write(s.ctx, s.l, nothing); err != nil {
				return err
			}
			return s.store.Write(s.ctx, s.l, nothing)
		}, fencedstore.ErrStaleToken, []string{"write: report", "stale token: report"}},
		"the second of two fences is stale": {func(t *testing.T, s scene) error {
			if err := s.store.Write(s.ctx, fencedstore.Fence{Lease: s.l, Resource: "other"}, nothing); err != nil {
				return err
			}
			return s.store.Write(s.ctx, fencedstore.Fences{{Lease: s.l}, {Lease: s.l, Resource: "other"}}, nothing)
		}, fencedstore.ErrStaleToken, []string{"write: other", "stale token: other"}},
		"not begun": {func(t *testing.T, s scene) error {
			if err := s.l.Release(s.ctx); err != nil {
				return err
			}
			return s.store.Write(s.ctx, s.l, nothing)
		}, pglock.ErrReleased, []string{"refused: report"}},
		"broken before it": {func(t *testing.T, s scene) error {
			if err := breaks(s); err != nil {
				return err
			}
			return s.store.Write(s.ctx, s.l, nothing)
		}, pglock.ErrLost, []string{"refused: report"}},
		"broken meanwhile": {func(t *testing.T, s scene) error {
			return s.store.Write(s.ctx, s.l, func(context.Context, pgx.Tx) error { return breaks(s) })
		}, pglock.ErrLost, []string{"refused: report"}},
		"committed by the callback": {func(t *testing.T, s scene) error {
			return s.store.Write(s.ctx, s.l, func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) })
		}, fencedstore.ErrLeftFence, []string{"refused: report"}},
		"too long": {func(t *testing.T, s scene) error {
			return s.store.With(fencedstore.WithTimeLimit(150*time.Millisecond)).Write(s.ctx, s.l,
				inTx(does("SELECT pg_sleep(20)")))
		}, fencedstore.ErrTimeLimit, []string{"refused: report"}},
		"without the fence of a guarded table": {func(t *testing.T, s scene) error {
			s.exec(t, "CREATE TABLE rows (id int)")
			if err := fencedstore.GuardTable(s.ctx, s.pool, "rows", fencedstore.WithTableResource("rows")); err != nil {
				return err
			}
			return s.store.Write(s.ctx, s.l, inTx(does("INSERT INTO rows VALUES (1)")))
		}, fencedstore.ErrUnfenced, []string{"refused: report"}},
		"the application's own error": {func(t *testing.T, s scene) error {
			return s.store.Write(s.ctx, s.l, func(context.Context, pgx.Tx) error { return errOwn })
		}, errOwn, nil},
		"invalid": {func(t *testing.T, s scene) error {
			return s.store.Write(s.ctx, fencedstore.Fence{Lease: s.l, Resource: "\xff"}, nothing)
		}, pglock.ErrInvalid, nil},
		"guarded": {within(func(s scene, tx pgx.Tx) error {
			if _, err := fencedstore.Guard(s.ctx, tx, s.l); err != nil {
				return err
			}
			return tx.Commit(s.ctx)
		}), nil, nil},
		"refused by Guard": {within(func(s scene, tx pgx.Tx) error {
			if err := s.store.Write(s.ctx, s.l, nothing); err != nil {
				return err
			}
			g, err := fencedstore.Guard(s.ctx, tx, s.l)
			return g.Explain(err) // it was told before
		}), fencedstore.ErrStaleToken, []string{"write: report", "stale token: report"}},
		"not begun by Guard": {within(func(s scene, tx pgx.Tx) error {
			if err := s.l.Release(s.ctx); err != nil {
				return err
			}
			return refused(fencedstore.Guard(s.ctx, tx, fencedstore.Fences{{Lease: s.l, Resource: "other"}}))
		}), pglock.ErrReleased, []string{"refused: other"}},
		"refused at a COMMIT of the application": {within(func(s scene, tx pgx.Tx) error {
			g, err := fencedstore.Guard(s.ctx, tx, s.l)
			if err != nil {
				return err
			}
			if err := breaks(s); err != nil {
				return err
			}
			return g.Explain(tx.Commit(s.ctx))
		}), pglock.ErrLost, []string{"refused: report"}},
		"refused at a COMMIT under several fences": {within(func(s scene, tx pgx.Tx) error {
			fences := fencedstore.Fences{{Lease: s.l, Resource: "x"}, {Lease: s.l, Resource: "y"}}
			g, err := fencedstore.Guard(s.ctx, tx, fences)
			if err != nil {
				return err
			}
			if err := breaks(s); err != nil {
				return err
			}
			return g.Explain(tx.Commit(s.ctx))
		}), pglock.ErrLost, []string{"refused: x"}},
		"refused by Seal": {within(func(s scene, tx pgx.Tx) error {
			if _, err := tx.Exec(s.ctx, "SAVEPOINT before"); err != nil {
				return err
			}
			g, err := fencedstore.Guard(s.ctx, tx, s.l)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(s.ctx, "ROLLBACK TO before"); err != nil {
				return err
			}
			return g.Seal(s.ctx)
		}), fencedstore.ErrLeftFence, []string{"refused: report"}},
	} {
		t.Run(what, func(t *testing.T) {
			o := &observed{}
			ctx := context.WithValue(t.Context(), contextKey{}, "the call's")
			s := scene{bench: b.withClient(t, pglock.WithObserver(o)), ctx: ctx}
			s.l = s.acquire(t, "report")
			var err error
			if s.admin, err = lockadmin.New(s.ctx, s.pool); err != nil {
				t.Fatal(err)
			}
			if err := c.do(t, s); !errors.Is(err, c.is) {
				t.Fatalf("error %v, want %v", err, c.is)
			}
			if err := s.client.Close(s.ctx); err != nil { // which joins the observer
				t.Fatal(err)
			}
			if got := o.words(); !slices.Equal(got, c.want) {
				t.Errorf("events %q, want %q", got, c.want)
			}
			for i, e := range o.events {
				if e.Lock != "report" || e.Token != s.l.Token() || e.Age <= 0 || e.Age > time.Minute ||
					e.TTL != time.Hour {
					t.Errorf("event %+v", e)
				}
				if written := e.Kind == pglock.EventWrite; written != (e.Err == nil) || written != (e.Took > 0) {
					t.Errorf("event %+v", e)
				}
				if e.Kind == pglock.EventStale && (!errors.Is(e.Err, fencedstore.ErrStaleToken) ||
					e.LastToken != s.l.Token()) {
					t.Errorf("event %+v", e)
				}
				if explained := c.is == pglock.ErrLost && o.values[i] == nil; o.values[i] != "the call's" &&
					!explained {
					t.Errorf("the context of %+v has the value %v", e, o.values[i])
				}
			}
		})
	}
}

func TestWriteWhoseCallbackPanicsIsNotObservedAsCommitted(t *testing.T) {
	t.Parallel()
	o := &observed{}
	b := newBench(t, pglock.WithObserver(o))
	l := b.acquire(t, "report")
	func() {
		defer func() { _ = recover() }()
		_ = b.store.Write(t.Context(), l, func(context.Context, pgx.Tx) error { panic("no") })
	}()
	must.Do(t, b.client.Close(t.Context()))
	if got := o.words(); len(got) > 0 {
		t.Errorf("events %q", got)
	}
}
