package pglock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// A balancer may lead a connection to a server that has just become a standby, and leave it there. Whoever was refused
// there connects again.
func TestConnectionsToAStandbyAreGivenUp(t *testing.T) {
	t.Parallel()
	var standby atomic.Bool // where new connections arrive
	db := pgtest.Database(t)
	pool := db.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if !standby.Load() {
				return nil
			}
			_, err := conn.Exec(ctx, "SET default_transaction_read_only = on")
			return err
		}
	})
	events := make(chan pglock.EventKind, 100)
	c := startClient(t, pool, pglock.WithObserver(pglock.ObserverFunc(func(_ context.Context, e pglock.Event) {
		switch {
		case e.Kind == pglock.EventRenewFailed && protocol.State(e.Err) != "25006":
		case e.Kind == pglock.EventRenew, e.Kind == pglock.EventRenewFailed, e.Kind == pglock.EventLost:
			events <- e.Kind
		}
	})))
	want := func(kind pglock.EventKind) {
		t.Helper()
		if got := <-events; got != kind {
			t.Fatalf("%q, want %q", got, kind)
		}
	}

	standby.Store(true)
	pool.Reset() // the pool opens its only connection anew
	if _, err := c.TryAcquire(t.Context(), "report"); !errors.Is(err, pglock.ErrReadOnly) {
		t.Fatalf("%v, want ErrReadOnly", err)
	}
	standby.Store(false)
	mustAcquire(t, c, "report", pglock.WithTTL(6*time.Second))
	busy, err := pool.Acquire(t.Context()) // the heartbeat cannot use it, and has no connection yet
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Release()
	execute(t, db.Conn(t), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid NOT IN ($1, pg_backend_pid())`, busy.Conn().PgConn().PID())
	standby.Store(true)
	want(pglock.EventRenewFailed)
	standby.Store(false)
	want(pglock.EventRenew)
}

// The pool has several connections to a server that has become a standby: a call meets none of them twice.
func TestACallPassesThePoolsConnectionsToAStandby(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 5 })
	c := startClient(t, pool)
	held := mustAcquire(t, c, "held")
	demote := func() {
		t.Helper()
		var all []*pgxpool.Conn
		for range 4 {
			conn, err := pool.Acquire(t.Context())
			if err == nil {
				_, err = conn.Exec(t.Context(), "SET default_transaction_read_only = on")
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, conn)
		}
		for _, conn := range all {
			conn.Release()
		}
	}
	demote()
	mustAcquire(t, c, "report")
	demote()
	for _, err := range c.Watch(t.Context(), "report") {
		must.Note(t, err)
		break
	}
	demote()
	must.Note(t, held.Release(t.Context()))
}
