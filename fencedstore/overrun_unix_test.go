//go:build unix

package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// From PostgreSQL 17 on a server process that stood still past two of the limits reports one of them, and keeps the
// other for the next transaction of its connection that has any limit. So that connection serves nobody else.
func TestTransactionThatOverranItsLimitsLeavesItsConnectionToNobody(t *testing.T) {
	t.Parallel()
	if kind := pgtest.Server(t).Kind(); kind != pgserver.KindPrograms && kind != pgserver.KindDownload {
		t.Skipf("the server is a %s: its processes cannot be stopped from here", kind)
	}
	b := newBench(t)
	often := func(c *pgx.ConnConfig) { // so that the kept limit strikes soon
		c.RuntimeParams["client_connection_check_interval"] = "10"
	}
	pool := b.db.Pool(t, func(c *pgxpool.Config) { often(c.ConnConfig); c.MaxConns = 1 })
	config := must.Get(pgx.ParseConfig(b.db.URL()))(t)
	often(config)
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	type query func(ctx context.Context, sql string, into any) error
	for name, write := range map[string]func(do func(context.Context, query) error,
		opts ...fencedstore.Option) error{
		"Write": func(do func(context.Context, query) error, opts ...fencedstore.Option) error {
			lease := b.acquire(t, t.Name()+time.Now().String())
			return fencedstore.New(pool).With(opts...).Write(t.Context(), lease,
				func(ctx context.Context, tx pgx.Tx) error {
					return do(ctx, func(ctx context.Context, sql string, into any) error {
						return tx.QueryRow(ctx, sql).Scan(into)
					})
				})
		},
		"WriteSQL": func(do func(context.Context, query) error, opts ...fencedstore.Option) error {
			lease := b.acquire(t, t.Name()+time.Now().String())
			return fencedstore.NewSQL(db).With(opts...).Write(t.Context(), lease,
				func(ctx context.Context, tx *sql.Tx) error {
					return do(ctx, func(ctx context.Context, sql string, into any) error {
						return tx.QueryRowContext(ctx, sql).Scan(into)
					})
				})
		},
	} {
		t.Run(name, func(t *testing.T) {
			const limit = 3 * time.Second // the statement has to be seen before it is cut off
			var stopped, next int
			err := write(func(ctx context.Context, ask query) error {
				if err := ask(ctx, `SELECT pg_backend_pid()`, &stopped); err != nil {
					return err
				}
				defer pause(t, b, stopped, limit+200*time.Millisecond)()
				return ask(ctx, `SELECT 1 FROM pg_sleep(60)`, new(int))
			}, fencedstore.WithTimeLimit(limit))
			if !errors.Is(err, fencedstore.ErrTimeLimit) {
				t.Fatalf("%v, want the end by a time limit", err)
			}
			for range 2 {
				err = write(func(ctx context.Context, ask query) error {
					if err := ask(ctx, `SELECT pg_backend_pid()`, &next); err != nil {
						return err
					}
					return ask(ctx, `SELECT 1 FROM pg_sleep(0.05)`, new(int))
				}, fencedstore.WithTimeLimit(time.Minute))
				if err != nil {
					t.Errorf("an innocent write: %v", err)
				}
			}
			if next == stopped {
				t.Errorf("the connection to the process %d that overran its limits is used again", stopped)
			}
		})
	}
}

// pause stops the server process while it sleeps in a statement, and lets it go on a while later. The function that it
// gives waits for that.
func pause(t *testing.T, b *bench, pid int, d time.Duration) (join func()) {
	done := make(chan struct{})
	pgtest.Group(t).Go(func() {
		defer close(done)
		for asleep := 0; asleep == 0; {
			err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
				WHERE pid = $1 AND wait_event = 'PgSleep'`, pid).Scan(&asleep)
			if err != nil {
				t.Error(err)
				return
			}
		}
		must.Note(t, syscall.Kill(pid, syscall.SIGSTOP))
		time.Sleep(d)
		must.Note(t, syscall.Kill(pid, syscall.SIGCONT))
	})
	return func() { <-done }
}
