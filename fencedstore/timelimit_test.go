package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// work is what a write does in the tests here: one statement with one argument, through whatever the way of writing
// hands out.
type work func(ctx context.Context, exec func(ctx context.Context, sql string, args ...any) error) error

// way is one way to write under a fence.
type way func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error

func inTx(do work) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		return do(ctx, func(ctx context.Context, sql string, args ...any) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
	}
}

func inSQL(do work) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error { return do(ctx, inSQLTx(tx)) }
}

func inSQLTx(tx *sql.Tx) func(ctx context.Context, sql string, args ...any) error {
	return func(ctx context.Context, sql string, args ...any) error {
		_, err := tx.ExecContext(ctx, sql, args...)
		return err
	}
}

// ways are all of them. Guard and GuardSQL are called as the documentation says: the guard first, the seal last, and
// Explain.
var ways = map[string]way{
	"Write": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return b.store.With(opts...).Write(t.Context(), l, inTx(do))
	},
	"Write of several": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return b.store.With(opts...).Write(t.Context(), several(l), inTx(do))
	},
	"Once": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return b.store.With(opts...).Once(t.Context(), l, t.Name(), inTx(do))
	},
	"WriteSQL": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return fencedstore.NewSQL(b.sqlDB).With(opts...).Write(t.Context(), l, inSQL(do))
	},
	"WriteSQL of several": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return fencedstore.NewSQL(b.sqlDB).With(opts...).Write(t.Context(), several(l), inSQL(do))
	},
	"OnceSQL": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return fencedstore.NewSQL(b.sqlDB).With(opts...).Once(t.Context(), l, t.Name(), inSQL(do))
	},
	"Guard": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return guarded(t, b, l, do, opts...)
	},
	"Guard of several": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return guarded(t, b, several(l), do, opts...)
	},
	"Guard of a key": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return guarded(t, b, l, do, append(opts, fencedstore.WithKey(t.Name()))...)
	},
	"GuardSQL": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return guardedSQL(t, b, l, do, opts...)
	},
	"GuardSQL of several": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return guardedSQL(t, b, several(l), do, opts...)
	},
	"GuardSQL of a key": func(t *testing.T, b *bench, l *pglock.Lease, do work, opts ...fencedstore.Option) error {
		return guardedSQL(t, b, l, do, append(opts, fencedstore.WithKey(t.Name()))...)
	},
}

func several(l *pglock.Lease) fencedstore.Fences {
	return fencedstore.Fences{{Lease: l}, {Lease: l, Resource: l.Name() + "/other"}}
}

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
	if err := do(t.Context(), inSQLTx(tx)); err != nil {
		return g.Explain(err)
	}
	if err := g.Seal(t.Context()); err != nil {
		return g.Explain(err)
	}
	return g.Explain(tx.Commit())
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

// tried says whether this tier has a way: in the short tier one of each kind, by pgx or by database/sql.
func tried(name string) bool {
	return pgtest.Among(name, "Write", "WriteSQL of several", "OnceSQL", "GuardSQL", "Guard of several",
		"Guard of a key")
}

// isGuard says of a way that it does not hear of the end of its transaction.
func isGuard(name string) bool { return strings.HasPrefix(name, "Guard") }

// left is how long the lock is taken for, by the server's clock.
func (b *bench) left(t *testing.T, name string) time.Duration {
	t.Helper()
	return time.Duration(b.number(t,
		`SELECT coalesce((extract(epoch FROM max(expires_at) - clock_timestamp()) * 1000)::int, 0)
		FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp()`, name)) * time.Millisecond
}

func sleeps(seconds float64) work {
	return func(ctx context.Context, exec func(context.Context, string, ...any) error) error {
		return exec(ctx, `SELECT pg_sleep($1)`, seconds)
	}
}

// A statement that takes longer than the TTL is what WithTimeLimit is for. The lease lasts for the time limit from the
// beginning on, renewals do not shorten it, and after the write it has its TTL again.
func TestWorkLongerThanATTLCommitsWithinItsTimeLimit(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	b.exec(t, `CREATE TABLE done (way text)`)
	for name, way := range ways {
		if !pgtest.Among(name, "Write", "OnceSQL", "Guard of several", "GuardSQL") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl, limit = 4 * time.Second, time.Minute // a TTL in which a busy machine comes to the write
			l := b.acquire(t, name, pglock.WithTTL(ttl))
			err := way(t, b, l, func(ctx context.Context, exec func(context.Context, string, ...any) error) error {
				if err := exec(ctx, `INSERT INTO done VALUES ($1)`, name); err != nil {
					return err
				}
				for range 2 {
					if left := b.left(t, name); left < limit-6*ttl {
						t.Errorf("the lease has %v left during the transaction, want nearly %v", left, limit)
					}
					if left := time.Until(l.Deadline()); left < limit-6*ttl {
						t.Errorf("the lease is trusted for %v, want nearly %v", left, limit)
					}
					if err := exec(ctx, `SELECT pg_sleep($1)`, ttl.Seconds()/4); err != nil {
						return err
					}
				}
				return exec(ctx, `SELECT pg_sleep($1)`, 1.25*ttl.Seconds())
			}, fencedstore.WithTimeLimit(limit))
			if n := b.number(t, `SELECT count(*) FROM done WHERE way = $1`, name); err != nil || n != 1 {
				t.Fatalf("%v, and %d rows", err, n)
			}
			if !l.Valid() {
				t.Fatalf("the lease is lost: %v", l.Err())
			}
			if isGuard(name) { // nobody tells the end of the transaction
				return
			}
			pgtest.Eventually(t, "the lock is taken and trusted for its TTL again", func() bool {
				return b.left(t, name) <= ttl && time.Until(l.Deadline()) <= ttl
			})
			time.Sleep(ttl + ttl/4) // it is renewed by its TTL again
			if left := b.left(t, name); left <= 0 || left > ttl || !l.Valid() {
				t.Errorf("a TTL and a quarter later the lock is taken for %v, and the holder says %v", left, l.Err())
			}
		})
	}
}

// What a hung holder can cost the next one is the time limit, whichever the way, and the error says which limit that
// was, how long, and how to change it.
func TestI16_TimeLimitEndsWhatTakesLongerAndTheErrorSaysSo(t *testing.T) {
	t.Parallel()
	const limit = 4 * time.Second
	b := newWideBench(t)
	b.exec(t, `CREATE TABLE held AS SELECT 0 AS n`)
	holds, err := b.pool.Begin(t.Context())
	if err == nil {
		_, err = holds.Exec(t.Context(), `UPDATE held SET n = 2`)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holds.Rollback(context.WithoutCancel(t.Context())) })
	for name, way := range ways {
		for what, c := range map[string]struct {
			do       work
			settings []string
		}{
			"a statement": {sleeps(30), []string{"statement_timeout", "transaction_timeout"}},
			"a pause": {func(ctx context.Context, exec func(context.Context, string, ...any) error) error {
				time.Sleep(limit + 500*time.Millisecond)
				return exec(context.WithoutCancel(ctx), `SELECT 1`)
			}, []string{"idle_in_transaction_session_timeout", "transaction_timeout", ""}},
			"a lock": {func(ctx context.Context, exec func(context.Context, string, ...any) error) error {
				ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				return exec(ctx, `UPDATE held SET n = 1`)
			}, []string{"lock_timeout", "statement_timeout", "transaction_timeout"}},
		} {
			for how, ttl := range map[string]time.Duration{"longer than the TTL": 3 * time.Second,
				"shorter than the TTL": time.Hour} {
				switch { // all ways share the rest
				case !tried(name), !pgtest.EveryTest && what != "a statement" && name == "Guard of several":
					continue
				case ttl == time.Hour && (what != "a statement" ||
					name != "Write of several" && name != "WriteSQL of several" && name != "OnceSQL" &&
						name != "GuardSQL"):
					continue
				case what != "a statement" && name != "Write" && name != "WriteSQL" && name != "Guard of several" &&
					name != "GuardSQL":
					continue
				}
				t.Run(name+"/"+what+"/"+how, func(t *testing.T) {
					t.Parallel()
					var err error
					var took time.Duration
					for try := range 3 { // a busy machine may lose a short lease
						l := b.acquire(t, fmt.Sprint(t.Name(), try), pglock.WithTTL(ttl))
						begin := time.Now()
						err, took = way(t, b, l, c.do, fencedstore.WithTimeLimit(limit)), time.Since(begin)
						if ttl > limit || !errors.Is(err, pglock.ErrLost) {
							break
						}
					}
					var late *fencedstore.TimeLimitError
					if !errors.As(err, &late) || !errors.Is(err, fencedstore.ErrTimeLimit) {
						t.Fatalf("%v, want a TimeLimitError", err)
					}
					found := false
					for _, s := range c.settings {
						found = found || late.Setting == s
					}
					if !found || late.Limit != limit || !late.Given {
						t.Errorf("%+v, want one of %q after %v", late, c.settings, limit)
					}
					wants := []string{late.Setting, limit.String(), "WithTimeLimit"}
					if late.Wait != nil || late.Setting == "lock_timeout" { // more time would not have helped
						wants[2] = "nothing was written"
					}
					if late.Setting == "idle_in_transaction_session_timeout" {
						wants = append(wants, "the program stood still")
					}
					for _, want := range wants {
						if !strings.Contains(err.Error(), want) {
							t.Errorf("%q does not say %q", err, want)
						}
					}
					if took > 20*time.Second {
						t.Errorf("it took %v", took)
					}
				})
			}
		}
	}
}
