package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// Short programs that each leave a row would pile them up, and people would take them for alive.
func TestCloseLeavesNoSessionWhateverTheClientDid(t *testing.T) {
	db := pgtest.Parallel(t)
	pool, look := db.Pool(t), db.Conn(t)
	mustAcquire(t, startClient(t, db.Pool(t)), "held by another", pglock.WithTTL(time.Hour))
	sessions := func(holder string) (n int) {
		must.Do(t, look.QueryRow(t.Context(), "SELECT count(*) FROM pglock.sessions WHERE holder = $1",
			holder).Scan(&n))
		return n
	}
	take := func(name string, opts ...pglock.AcquireOption) func(context.Context, *pglock.Client) error {
		return func(ctx context.Context, c *pglock.Client) error {
			_, err := c.Acquire(ctx, name, opts...)
			return err
		}
	}
	waits := func(ctx context.Context, c *pglock.Client) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		result := must.Go(func() error { return take("held by another")(ctx, c) })
		pgtest.Eventually(t, "the call to queue", func() (queued bool) {
			err := look.QueryRow(ctx, "SELECT count(*) > 0 FROM pglock.waiters").Scan(&queued)
			return err == nil && queued
		})
		cancel()
		return <-result
	}
	for what, tc := range map[string]struct {
		do   func(context.Context, *pglock.Client) error
		want error
	}{
		"nothing":                     {do: func(context.Context, *pglock.Client) error { return nil }},
		"a semaphore":                 {do: take("semaphore", pglock.WithLimit(1000))},
		"a shared lock":               {do: take("shared", pglock.WithShared())},
		"a name that is new":          {do: take("new")},
		"a name that was used before": {do: take("new once")},
		"several names": {do: func(ctx context.Context, c *pglock.Client) error {
			_, err := c.AcquireAll(ctx, []string{"one", "two"})
			return err
		}},
		"a lease that it released": {do: func(ctx context.Context, c *pglock.Client) error {
			return c.Do(ctx, "done", func(context.Context, *pglock.Lease) error { return nil })
		}},
		"a subtree without a wait": {do: func(ctx context.Context, c *pglock.Client) error {
			_, err := c.TryAcquire(ctx, "subtree", pglock.WithSubtree())
			return err
		}},
		"a lease without a wait": {do: func(ctx context.Context, c *pglock.Client) error {
			_, err := c.TryAcquire(ctx, "tried", pglock.WithLimit(3))
			return err
		}},
		"a lease that it extended": {do: func(ctx context.Context, c *pglock.Client) error { // which marks a connection
			l, err := c.TryAcquire(ctx, "extended")
			if err == nil {
				_, err = l.Extend(ctx, time.Hour)
			}
			return err
		}},
		"a wait":    {waits, context.Canceled},
		"a refusal": {take("held by another", pglock.WithMaxWait(0)), pglock.ErrHeld},
		"a watch": {do: func(ctx context.Context, c *pglock.Client) error {
			for _, err := range c.Watch(ctx, "held by another") {
				return err
			}
			return nil
		}},
	} {
		t.Run(what, func(t *testing.T) {
			for range 2 { // the second finds the name used
				c := must.Get(pglock.New(t.Context(), pool, pglock.WithDefaultHolder(what)))(t)
				if err := tc.do(t.Context(), c); !errors.Is(err, tc.want) {
					t.Error(err)
				}
				must.Note(t, c.Close(t.Context()))
				if n := sessions(what); n != 0 {
					t.Errorf("%d sessions are left", n)
				}
			}
		})
	}
}

// Close waits for whoever has locked a lease's row, as Release does, for as long as its context allows: one lease, or
// several that it releases in one statement.
func TestCloseWaitsForWhoeverHasLockedTheRowOfALease(t *testing.T) {
	t.Parallel()
	for what, names := range map[string][]string{"one lease": {"x"}, "several": {"w", "x", "y"}} {
		t.Run(what, func(t *testing.T) {
			db := pgtest.Parallel(t)
			conn, look := db.Conn(t), db.Conn(t)
			c := must.Get(pglock.New(t.Context(), db.Pool(t)))(t)
			for _, name := range names {
				mustAcquire(t, c, name)
			}
			execute(t, conn, "BEGIN")
			execute(t, conn, "SELECT FROM pglock.locks WHERE name = 'x' FOR UPDATE")
			closed := must.Go(func() error { return c.Close(t.Context()) })
			tries := make(map[string]bool) // of statements that wait
			pgtest.Eventually(t, "Close has asked again and again", func() bool {
				var began string
				if look.QueryRow(t.Context(), `SELECT query_start::text FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event_type = 'Lock' LIMIT 1`).Scan(&began) == nil {
					tries[began] = true
				}
				return len(tries) >= 8 || len(closed) > 0
			})
			execute(t, conn, "ROLLBACK")
			if err := <-closed; err != nil {
				t.Errorf("%v after %d tries", err, len(tries))
			}
			var held int
			if err := look.QueryRow(t.Context(), "SELECT count(*) FROM pglock.locks WHERE expires_at > "+
				"clock_timestamp()").Scan(&held); err != nil || held != 0 {
				t.Errorf("%d locks are held after Close, %v", held, err)
			}
		})
	}
}
