package fencedstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A time limit and the grace of its lease have 24 hours together, and whoever asks for more is told the field by name.
func TestTimeLimitBesideAGraceMayBeAsLongAsTheRuleSays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lease := b.acquire(t, "a", pglock.WithGrace(time.Hour))
	write := func(limit time.Duration) error {
		return b.store.With(fencedstore.WithTimeLimit(limit)).Write(t.Context(),
			fencedstore.Fence{Lease: lease, SameToken: true}, nothing)
	}
	must.Note(t, write(23*time.Hour))
	if err := write(23*time.Hour + time.Minute); !errors.Is(err, pglock.ErrInvalid) ||
		!strings.Contains(err.Error(), "time limit is 23h1m0s") {
		t.Error(err)
	}
}

// A connection that an administrator ends after the time limit is not ended by it.
func TestTerminationIsNotTakenForTheTimeLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const limit = 3 * time.Second
	other := b.db.Conn(t)
	err := b.store.With(fencedstore.WithTimeLimit(limit)).Write(t.Context(), b.acquire(t, "a"),
		func(ctx context.Context, tx pgx.Tx) error {
			pid := tx.Conn().PgConn().PID()
			if _, err := other.Exec(ctx, "SELECT pg_terminate_backend($1)", pid); err != nil {
				return err
			}
			time.Sleep(limit + 100*time.Millisecond) // the error is read after the limit
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		})
	if err == nil || errors.Is(err, fencedstore.ErrTimeLimit) || !strings.Contains(err.Error(), "57P01") {
		t.Error(err)
	}
}

// Where the write's connection is the only one that the server gives, nobody could extend the lease beside it.
func TestALeaseIsExtendedBeforeItsWriteTakesTheOnlyConnection(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	db := b.db
	user := db.Name() + "_only"
	db.Look(t, func(conn *pgx.Conn) {
		if _, err := conn.Exec(t.Context(), "CREATE ROLE "+user+" LOGIN PASSWORD 'x' CONNECTION LIMIT 1 IN ROLE "+
			"pglock_user"); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		db.Look(t, func(conn *pgx.Conn) { _, _ = conn.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+user) })
	})
	b = b.through(t, func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.User, c.ConnConfig.Password = 1, user, "x"
	})
	lease := b.acquire(t, "a", pglock.WithTTL(5*time.Second))
	must.Note(t, b.store.With(fencedstore.WithTimeLimit(20*time.Second)).Write(t.Context(), lease, nothing))
}

// The time limit is for the transaction: a wait for a connection of the pool takes nothing of it.
func TestAWaitForAConnectionTakesNothingOfTheTimeLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, limit := range map[string]time.Duration{"4s": 4 * time.Second, "1min": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := b.db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
			only := must.Get(pool.Acquire(t.Context()))(t)
			lease := b.acquire(t, name, pglock.WithTTL(3*time.Second))
			written := make(chan error, 1)
			var allowed string
			go func() {
				written <- fencedstore.New(pool).With(fencedstore.WithTimeLimit(limit)).Write(t.Context(), lease,
					func(ctx context.Context, tx pgx.Tx) error {
						return tx.QueryRow(ctx, "SELECT current_setting('statement_timeout')").Scan(&allowed)
					})
			}()
			pgtest.Eventually(t, "the write to wait for the connection", func() bool {
				return time.Until(lease.Deadline()) > limit-time.Second
			})
			time.Sleep(1500 * time.Millisecond) // longer than what the lease has to spare
			only.Release()
			if err := <-written; err != nil || allowed != name {
				t.Errorf("the transaction may take %s, %v; want %s", allowed, err, name)
			}
		})
	}
}

// A snapshot that is older than the extension shows the old end of the lease: the transaction could not use its time.
func TestGuardsRefuseALimitThatTheirSnapshotDoesNotShow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	limit := fencedstore.WithTimeLimit(time.Hour)
	for name, guard := range map[string]func(pgx.Tx, *pglock.Lease) error{
		"Guard": func(tx pgx.Tx, l *pglock.Lease) error {
			return refused(fencedstore.Guard(t.Context(), tx, l, limit))
		},
		"Guard of several": func(tx pgx.Tx, l *pglock.Lease) error {
			return refused(fencedstore.Guard(t.Context(), tx, several(l), limit))
		},
		"Guard of a key": func(tx pgx.Tx, l *pglock.Lease) error {
			return refused(fencedstore.Guard(t.Context(), tx, l, fencedstore.WithKey("k"), limit))
		},
	} {
		for _, early := range []bool{true, false} {
			l := b.acquire(t, fmt.Sprint(name, early), pglock.WithTTL(time.Minute)) // Guard's extension lasts
			err := pgx.BeginTxFunc(t.Context(), b.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead},
				func(tx pgx.Tx) error {
					if !early {
						if _, err := tx.Exec(t.Context(), "SELECT FROM pg_class LIMIT 1"); err != nil {
							return err
						}
					}
					if err := guard(tx, l); err != nil {
						return err
					}
					return errors.New("passed")
				})
			if early && err.Error() != "passed" {
				t.Errorf("%s as the first statement: %v", name, err)
			}
			if !early && (!errors.Is(err, pglock.ErrInvalid) || !strings.Contains(err.Error(), "first statement")) {
				t.Errorf("%s under an old snapshot: %v, want ErrInvalid", name, err)
			}
		}
	}
}
