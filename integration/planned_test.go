package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// A connection keeps the plan of a prepared statement, and of one in PL/pgSQL: the first five are for the values at
// hand, and then the server keeps one for all values, unless those for the values at hand look cheaper. It drops a plan
// that was made for another search_path, and plans an SQL function that it does not inline in each transaction that
// calls it.
func TestNothingIsPlannedAnewByEachCall(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	if err := fencedstore.GuardTable(t.Context(), newPool(t, db.URL()), "ledger",
		fencedstore.WithTableResource("x")); err != nil {
		t.Fatal(err)
	}
	const clients, rounds, kept = 2, 16, 5 + 1
	var mu sync.Mutex
	planned := make(map[string]int) // by connection and statement
	tell := func(config *pgxpool.Config) {
		config.MaxConns = 1
		params := config.ConnConfig.RuntimeParams
		params["log_planner_stats"], params["client_min_messages"], params["log_min_messages"] = "on", "log", "panic"
		config.ConnConfig.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
			in := innermost(n.Where)
			// which is rare, see there
			if n.Message == "PLANNER STATISTICS" && in != "" && !strings.Contains(in, "lost_reason") &&
				!strings.Contains(in, "noted_end") {
				mu.Lock()
				defer mu.Unlock()
				planned[fmt.Sprint(c.PID(), ": ", in)]++
			}
		}
	}
	first, key := newPool(t, db.URL(), tell), uuid.New() // of a queue, behind a reader
	for _, mode := range []string{"shared", "exclusive"} {
		if _, err := first.Exec(t.Context(),
			`SELECT FROM pglock.acquire_lease('read', gen_random_uuid(), $1, 'h', '1 h', p_mode => $2, p_wait => true)`,
			key, mode); err != nil {
			t.Fatal(err)
		}
	}
	// Plans for values that leave nothing to do are cheap. After a few of them the others are not planned anew.
	if _, err := first.Exec(t.Context(), `SELECT pglock.acquire_lease('limited', gen_random_uuid(), $1, 'h', '1 h',
		p_mode => 'limit', p_capacity => $2) FROM generate_series(1, $2)`, key, kept); err != nil {
		t.Fatal(err)
	}
	for range rounds {
		var left int64
		if err := first.QueryRow(t.Context(), `SELECT remaining_us FROM pglock.look($1, 'h', '10 s')`,
			key).Scan(&left); err != nil || left <= 0 {
			t.Fatalf("the first in the queue is to ask in %d us, %v", left, err)
		}
		a, b := uuid.New(), uuid.New()
		for _, id := range []uuid.UUID{a, b} {
			if _, err := first.Exec(t.Context(),
				`SELECT FROM pglock.acquire_lease('turns', $1, $2, 'h', '1 h', p_wait => true)`, id, key); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range []uuid.UUID{a, b} {
			if _, err := first.Exec(t.Context(),
				`SELECT FROM pglock.locks l, pglock.release_lease(l.name, l.token, $1) WHERE l.name = 'turns'`,
				id); err != nil {
				t.Fatal(err)
			}
			must.Get(first.Exec(t.Context(), `SELECT pglock.announce('{turns}', $1)`, []int{0}))(t)
		}
	}
	all := pgtest.Group(t)
	for n := range clients {
		pool := newPool(t, db.URL(), tell)
		c := newClient(t, pool, pglock.WithDefaultHolder(fmt.Sprint("h", n)))
		all.Go(func() {
			for range rounds {
				must.Note(t, everyCall(t.Context(), c, pool, n, (n+1)%clients))
			}
			var prepared int
			var anew []string
			if err := pool.QueryRow(t.Context(),
				`SELECT count(*), array_agg(statement) FILTER (WHERE custom_plans >= $1)
				FROM pg_prepared_statements`, kept).Scan(&prepared, &anew); err != nil || prepared < kept ||
				anew != nil {
				t.Errorf("of %d prepared statements these are planned anew: %q, %v", prepared, anew, err)
			}
		})
	}
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	for _, name := range strings.Split(fromTheFirst, "|") {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(planned)), func(statement string) bool {
			return strings.Contains(strings.ReplaceAll(statement, "pglock.", ""), " "+name+"(")
		}) {
			t.Errorf("nobody was seen in %s", name)
		}
	}
	for statement, n := range planned {
		most := (kept + rounds) / 2
		if once.MatchString(statement) { // but for an invalidation, as by ANALYZE
			most = kept - 1
		}
		if n > most {
			t.Errorf("planned %d times in %d rounds on connection %s", n, rounds, statement)
		}
	}
}

// fromTheFirst are functions that have one plan for all values from the first call on: they ask for it, or their
// callers do.
const fromTheFirst = "acquire_leases|grant_set|acquire_one|decide|enqueue|touch_session|" +
	"release_leases|end_set|release_otherwise|serve|claim|give_up|give_up_all|hand_over|" +
	"look|announce|check_leases|fence|fence_all|seal|outcome|once"

var once = regexp.MustCompile(`function (?:pglock\.)?(` + fromTheFirst + `)\(`)

// innermost is the statement in a context, with the function that it is in.
func innermost(context string) string {
	const function = "PL/pgSQL function"
	head, rest, ok := strings.Cut(context, function)
	if !ok {
		return context
	}
	line, _, _ := strings.Cut(rest, "\n")
	return head + function + line
}

// everyCall does what a client can do, once, beside others that do the same.
func everyCall(ctx context.Context, c *pglock.Client, pool *pgxpool.Pool, n, next int) error {
	store := fencedstore.New(pool)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	nothing := func(context.Context, pgx.Tx) error { return nil }
	guarded := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES (1)`)
		return err
	}
	held := func(name string, opts ...pglock.AcquireOption) func(func(*pglock.Lease) error) error {
		return func(f func(*pglock.Lease) error) error {
			return c.Do(ctx, name, func(_ context.Context, l *pglock.Lease) error { return f(l) }, opts...)
		}
	}
	steps := []func() error{
		func() error {
			return held(fmt.Sprint("own", n), pglock.WithTTL(20*time.Second))(func(l *pglock.Lease) error {
				if _, err := l.Check(ctx); err != nil {
					return err
				}
				end, err := l.Extend(ctx, time.Minute)
				if err == nil {
					end()
				}
				return errors.Join(err, hooks.Of(l).Renew(ctx))
			})
		},
		func() error {
			return held("x")(func(l *pglock.Lease) error {
				limited := store.With(fencedstore.WithTimeLimit(time.Minute))
				again := fencedstore.Fence{Lease: l, SameToken: true}
				return errors.Join(store.Write(ctx, l, guarded), limited.Write(ctx, again, nothing),
					store.Once(ctx, l, uuid.NewString(), nothing))
			})
		},
		func() error {
			var guarded *fencedstore.Guarded
			err := held("x")(func(l *pglock.Lease) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
					if guarded, err = fencedstore.Guard(ctx, tx, l, fencedstore.WithReceipt()); err != nil {
						return err
					}
					return guarded.Seal(ctx)
				})
			})
			if err != nil {
				return err
			}
			_, asked := store.Outcome(ctx, guarded.Receipt())
			return errors.Join(err, asked)
		},
		func() error {
			return held("s", pglock.WithShared())(func(*pglock.Lease) error {
				_, err := c.TryAcquire(ctx, "s")
				if errors.Is(err, pglock.ErrHeld) {
					err = nil
				}
				return err
			})
		},
		func() error { return held("s")(func(*pglock.Lease) error { return nil }) },
		func() error { return held("l", pglock.WithLimit(2))(func(*pglock.Lease) error { return nil }) },
		func() error {
			got := make(chan error)
			const together = 8
			for i := range together {
				go func() { got <- held(fmt.Sprint("own", n, i))(func(*pglock.Lease) error { return nil }) }()
			}
			var err error
			for range together {
				err = errors.Join(err, <-got)
			}
			return err
		},
		func() error {
			l, err := c.TryAcquire(ctx, "x")
			if errors.Is(err, pglock.ErrHeld) {
				return nil
			}
			if err == nil {
				if err = l.HandOver(ctx, fmt.Sprint("h", next)); errors.Is(err, pglock.ErrNoWaiter) {
					err = l.Release(ctx)
				}
			}
			return err
		},
		func() error {
			return held(fmt.Sprint("own", n))(func(*pglock.Lease) error {
				soon, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
				defer cancel()
				if _, err := c.Acquire(soon, fmt.Sprint("own", n)); !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("%w of somebody who waits for a lock that is held", err)
				}
				return nil
			})
		},
		func() error {
			all, err := c.AcquireAll(ctx, []string{"a", "b"})
			if err != nil {
				return err
			}
			var fences fencedstore.Fences
			for _, l := range all.All() {
				fences = append(fences, fencedstore.Fence{Lease: l})
			}
			return errors.Join(store.Write(ctx, fences, nothing), all.Release(ctx))
		},
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("client %d, step %d: %w", n, i, err)
		}
	}
	return nil
}
