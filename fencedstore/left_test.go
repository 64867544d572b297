package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// A callback that has ended its transaction by itself has left the fence, whatever else it returns, and whether its
// context ends or its time is over: nobody takes what it has committed for rolled back.
func TestWhateverTheCallbackReturnsItsOwnCommitIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	const limit = time.Second
	own := errors.New("an error of its own")
	for name, write := range map[string]func(context.Context, fencedstore.Fence, work, ...fencedstore.Option) error{
		"Store": func(ctx context.Context, f fencedstore.Fence, do work, opts ...fencedstore.Option) error {
			return b.store.With(opts...).Write(ctx, f, inTx(do))
		},
		"SQLStore": func(ctx context.Context, f fencedstore.Fence, do work, opts ...fencedstore.Option) error {
			return fencedstore.NewSQL(b.sqlDB).With(opts...).Write(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
				return do(ctx, sqlTransaction{tx})
			})
		},
	} {
		for what, c := range map[string]struct {
			after func(cancel func()) error
			want  error
			opts  []fencedstore.Option
		}{
			"an error":           {func(func()) error { return own }, own, nil},
			"the end of its ctx": {func(cancel func()) error { cancel(); return nil }, context.Canceled, nil},
			"an answer that is lost after the limit": {func(func()) error {
				time.Sleep(limit + limit/10) // until the limit has passed
				return &pgconn.PgError{Severity: "FATAL", Code: "25P04"}
			}, fencedstore.ErrLeftFence, []fencedstore.Option{fencedstore.WithTimeLimit(limit)}},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			lease := b.acquire(t, fmt.Sprint(name, " ", what))
			before := b.number(t, `SELECT count(*) FROM done`)
			err := write(ctx, fencedstore.Fence{Lease: lease}, func(ctx context.Context, tx transaction) error {
				err := tx.exec(ctx, `INSERT INTO done VALUES (1)`)
				if err == nil {
					err = tx.commit(ctx)
				}
				if err != nil {
					t.Error(err)
				}
				return c.after(cancel)
			}, c.opts...)
			cancel()
			if !errors.Is(err, fencedstore.ErrLeftFence) || !errors.Is(err, c.want) ||
				errors.Is(err, fencedstore.ErrTimeLimit) {
				t.Errorf("%s, %s: %v, want ErrLeftFence and %v", name, what, err, c.want)
			}
			b.wantRows(t, before+1, `done`)
		}
	}
	err := b.store.Write(t.Context(), b.acquire(t, "raw"), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `COMMIT`)
		return errors.Join(err, own)
	})
	if !errors.Is(err, fencedstore.ErrLeftFence) || !errors.Is(err, own) {
		t.Errorf("a raw COMMIT: %v, want ErrLeftFence and %v", err, own)
	}
	err = b.store.Write(t.Context(), b.acquire(t, "kept"), func(context.Context, pgx.Tx) error { return own })
	if err != own { //nolint:errorlint // as it is
		t.Errorf("without an end of its own: %v, want %v as it is", err, own)
	}
}

// A prepared transaction keeps the row of its receipt, also if the callback panics after it: no later write of the
// process waits for that row.
func TestAPreparedTransactionOfACallbackThatPanicsIsInNobodysWay(t *testing.T) {
	t.Parallel()
	url := pgtest.Dedicated(t, map[string]string{"max_prepared_transactions": "1"}).URL()
	must.Do(t, migrations.Up(t.Context(), url))
	pool := must.Get(pgxpool.New(t.Context(), url))(t)
	t.Cleanup(pool.Close)
	client := must.Get(pglock.New(t.Context(), pool, pglock.WithDefaultTTL(time.Hour)))(t)
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	store := fencedstore.New(pool)
	lease := must.Get(client.TryAcquire(t.Context(), "prepared"))(t)
	func() {
		defer func() {
			if r := recover(); r != "a panic" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = store.Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `PREPARE TRANSACTION 'half'`); err != nil {
				t.Error(err)
			}
			panic("a panic")
		})
	}()
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), `ROLLBACK PREPARED 'half'`)
		must.Note(t, err)
	})
	other := must.Get(client.TryAcquire(t.Context(), "other"))(t)
	must.Note(t, store.With(fencedstore.WithTimeLimit(30*time.Second)).Write(t.Context(), other, nothing))
}
