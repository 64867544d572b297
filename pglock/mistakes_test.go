package pglock_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// waits hands on what the observer is told of waits.
type waits chan error

func (w waits) Observe(_ context.Context, e pglock.Event) {
	if e.Kind == pglock.EventWait {
		w <- e.Err
	}
}

// untilItWaits calls ask until the observer is told that it waits, and returns what it has told.
func untilItWaits[T any](t *testing.T, w waits, ask func(context.Context) (T, error)) (told, err error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		told = <-w
		cancel()
	}()
	_, err = ask(ctx)
	<-ctx.Done()
	return told, err
}

// A client that holds a lock and asks for it under another context is told so, by every call and by the observer.
// Another client is not told that.
func TestAClientIsToldThatItHoldsTheLockItself(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	seen := make(waits)
	c, other := startClient(t, pool, pglock.WithObserver(&seen)), startClient(t, pool)
	before := time.Now()
	held := mustAcquire(t, c, "report")
	since := func(what string, err error) time.Time {
		t.Helper()
		var h *pglock.HeldError
		if !errors.As(err, &h) || h.Token != held.Token() {
			t.Fatalf("%s: %v, want a HeldError with token %d", what, err, held.Token())
		}
		if says := strings.Contains(err.Error(), "that is this client, since"); says == h.OwnSince.IsZero() {
			t.Errorf("%s says %q, and has %v", what, err, h.OwnSince)
		}
		return h.OwnSince
	}
	_, tried := c.TryAcquire(t.Context(), "report")
	toldOne, waited := untilItWaits(t, seen, func(ctx context.Context) (*pglock.Lease, error) {
		return c.Acquire(ctx, "report")
	})
	toldAll, all := untilItWaits(t, seen, func(ctx context.Context) (*pglock.Leases, error) {
		return c.AcquireAll(ctx, []string{"invoice", "report"})
	})
	for what, err := range map[string]error{"TryAcquire": tried, "Acquire": waited, "AcquireAll": all,
		"the observer of Acquire": toldOne, "of AcquireAll": toldAll} {
		if at := since(what, err); at.Before(before) || at.After(time.Now()) {
			t.Errorf("%s: since %v, want after %v", what, at, before)
		}
	}
	if _, err := other.TryAcquire(t.Context(), "report"); !since("another client", err).IsZero() {
		t.Errorf("another client was told that it holds the lock itself: %v", err)
	}
	must.Do(t, held.Release(t.Context()))
	held = mustAcquire(t, other, "report")
	if _, err := c.TryAcquire(t.Context(), "report"); !since("who held it before", err).IsZero() {
		t.Errorf("who does not hold the lock any more was told that it does: %v", err)
	}
}

// Goroutines under one lease's context that take turns with another lock are in each other's way as one owner, and
// are told the way out.
func TestWorkOfItsOwnAsksWithANewOwner(t *testing.T) {
	t.Parallel()
	c := startClient(t, pgtest.Database(t).Pool(t))
	must.Do(t, c.Do(t.Context(), "leader", func(ctx context.Context, leader *pglock.Lease) error {
		first, err := c.Acquire(ctx, "rows")
		if err != nil {
			return err
		}
		if _, err := c.Acquire(ctx, "rows"); !errors.Is(err, pglock.ErrSelfDeadlock) ||
			!strings.Contains(err.Error(), "WithNewOwner") || strings.Count(err.Error(), "rows") != 1 ||
			strings.Count(err.Error(), "held") != 1 || strings.Contains(err.Error(), "holds") {
			t.Errorf("the same owner: %v, want once ErrSelfDeadlock and the way out", err)
		}
		var all sync.WaitGroup
		for _, ask := range []func(context.Context) error{
			func(ctx context.Context) error {
				return c.Do(ctx, "rows", func(ctx context.Context, l *pglock.Lease) error {
					if _, err := c.TryAcquire(ctx, "rows"); !errors.Is(err, pglock.ErrSelfDeadlock) {
						t.Errorf("under the lease of a new owner: %v, want ErrSelfDeadlock", err)
					}
					_, err := c.TryAcquire(ctx, "leader")
					if !errors.Is(err, pglock.ErrHeld) || errors.Is(err, pglock.ErrSelfDeadlock) {
						t.Errorf("the new owner asks for what the old one holds: %v, want ErrHeld alone", err)
					}
					return nil
				}, pglock.WithNewOwner())
			},
			func(ctx context.Context) error {
				leases, err := c.AcquireAll(ctx, []string{"rows"}, pglock.WithNewOwner())
				if err != nil {
					return err
				}
				return leases.Release(ctx)
			},
		} {
			all.Go(func() {
				must.Note(t, ask(ctx))
			})
		}
		if err := first.Release(ctx); err != nil {
			return err
		}
		all.Wait()
		return nil
	}))
}

// A call on a pool that the application has closed says so at once, and nothing waits for a server that nobody can ask.
func TestACallOnAClosedPoolSaysSoAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	c := startClient(t, pool)
	lease := mustAcquire(t, c, "report")
	pool.Close()
	for what, call := range map[string]func(context.Context) error{
		"TryAcquire": func(ctx context.Context) error { return ignore(c.TryAcquire(ctx, "new")) },
		"Acquire":    func(ctx context.Context) error { return ignore(c.Acquire(ctx, "new")) },
		"AcquireAll": func(ctx context.Context) error { return ignore(c.AcquireAll(ctx, []string{"new", "b"})) },
		"Do":         func(ctx context.Context) error { return c.Do(ctx, "new", fnRan) },
	} {
		soon, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := call(soon)
		if !errors.Is(err, puddle.ErrClosedPool) || soon.Err() != nil {
			t.Errorf("%s: %v, want that the pool is closed, at once", what, err)
		} else if says := err.Error(); strings.Count(says, "(the program has closed it; close first") != 1 {
			t.Errorf("%s: %s", what, says)
		}
		cancel()
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("the end of a lease needs no pool: %v", err)
	}
}

// A try waits for the application no more than for the lock: it asks over another connection. Without one it ends by
// itself, and nobody's context has ended.
func TestATryDoesNotWaitForAnExhaustedPool(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if full.Load() {
				return errors.New("no slot")
			}
			return nil
		}
	})
	c := startClient(t, pool)
	if _, err := c.Acquire(t.Context(), "free", pglock.WithMaxWait(1)); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "waited 1ns in vain (WithMaxWait)") {
		t.Errorf("%v, want that it names the wait", err)
	}
	conn := must.Get(pool.Acquire(t.Context()))(t)
	defer conn.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := c.TryAcquire(ctx, "tried")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Acquire(ctx, "tried", pglock.WithMaxWait(0))
	if !errors.Is(err, pglock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that the lock is held", err)
	}
	must.Do(t, lease.Release(ctx))
	full.Store(true)
	var tries sync.WaitGroup
	for what, opts := range map[string][]pglock.AcquireOption{"alone": nil, "a subtree": {pglock.WithSubtree()}} {
		tries.Go(func() {
			_, err := c.TryAcquire(ctx, "tried", opts...)
			if err == nil || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) ||
				!tenSeconds(err, "of the pool") ||
				!strings.Contains(err.Error(), "(1 of 1 in use)") || !strings.Contains(err.Error(), "no slot") {
				t.Errorf("%s: %v, want after a while that there is no connection", what, err)
			}
		})
	}
	tries.Wait()
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = c.TryAcquire(short, "tried", pglock.WithSubtree())
	if !errors.Is(err, context.DeadlineExceeded) || strings.Count(err.Error(), "no connection of the pool") != 1 {
		t.Errorf("%v, want that its context has ended, and why, once", err)
	}
}

// tenSeconds reports whether an error says that no connection came in ten seconds, or in a few more on a busy machine.
func tenSeconds(err error, whence string) bool {
	in := regexp.MustCompile(`no connection ` + whence + ` in ([0-9.]+s)[ :]`).FindStringSubmatch(err.Error())
	if in == nil {
		return false
	}
	took, err := time.ParseDuration(in[1])
	return err == nil && took >= 10*time.Second && took < 20*time.Second
}

// A try has its ten seconds for itself: one that waits for a connection with others does not fail with the first.
func TestATryThatComesLaterWaitsAsLong(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	var refused atomic.Int32
	pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if !full.Load() {
				return nil
			}
			refused.Add(1)
			return errors.New("no slot")
		}
	})
	c := startClient(t, pool)
	conn := must.Get(pool.Acquire(t.Context()))(t)
	defer full.Store(false)
	full.Store(true)
	try := func(name string) chan error {
		return must.Go(func() error { return ignore(c.TryAcquire(t.Context(), name)) })
	}
	first := try("first")
	pgtest.Eventually(t, "the first has waited for some seconds", func() bool { return refused.Load() >= 8 })
	second := try("second")
	err := <-first
	conn.Release()
	if err == nil || !tenSeconds(err, "of the pool") {
		t.Errorf("the first: %v, want that there was no connection", err)
	}
	if err := <-second; err != nil {
		t.Errorf("the second: %v, want that it has got the next connection", err)
	}
}

// A try for which no connection can be opened says so, and not that a context has ended, whose it was not.
func TestATryNamesTheServerThatGivesNoConnection(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 3
		c.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
			if silent.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}
	})
	c := startClient(t, pool)
	for _, idle := range pool.AcquireAllIdle(t.Context()) {
		defer idle.Release()
	}
	silent.Store(true)
	_, err := c.TryAcquire(t.Context(), "tried")
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !tenSeconds(err, "to the server") {
		t.Errorf("%v, want that the server gave no connection", err)
	}
}

// A call that gets no connection says how many there are, and that they are in use; one that gets one and has to wait
// for the lock does not.
func TestACallWithoutAConnectionSaysThatThePoolIsInUse(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	c, admin := startClient(t, pool), newAdmin(t, pool)
	mustAcquire(t, c, "held")
	store := fencedstore.New(pool)
	lease := mustAcquire(t, c, "report")
	calls := map[string]func(context.Context) error{
		"Acquire":       func(ctx context.Context) error { return ignore(c.Acquire(ctx, "new")) },
		"Acquire, held": func(ctx context.Context) error { return ignore(c.Acquire(ctx, "held")) },
		"Acquire for a time": func(ctx context.Context) error {
			ctx = context.WithoutCancel(ctx) // else it may end first
			err := ignore(c.Acquire(ctx, "new", pglock.WithMaxWait(100*time.Millisecond)))
			if !strings.Contains(err.Error(), ": waited 100ms in vain (WithMaxWait): no connection") {
				t.Errorf("%v, want that it names the wait", err)
			}
			return err
		},
		"AcquireAll": func(ctx context.Context) error { return ignore(c.AcquireAll(ctx, []string{"new", "b"})) },
		"lockadmin":  func(ctx context.Context) error { return ignore(admin.Backends(ctx, "held")) },
		"a write under the fence": func(ctx context.Context) error {
			return (store.Write(ctx, lease, func(context.Context, pgx.Tx) error { return nil }))
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			err = call(ctx)
			conn.Release()
			if !errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "no connection of the pool in ") ||
				!strings.Contains(err.Error(), " (1 of 1 in use)") {
				t.Errorf("%v, want that the pool's one connection was in use", err)
			}
		})
	}
	_, err := c.Acquire(t.Context(), "held", pglock.WithMaxWait(3*time.Second))
	if !errors.Is(err, pglock.ErrHeld) || strings.Contains(err.Error(), "no connection") {
		t.Errorf("with a connection: %v, want that the lock is held", err)
	}
}

// A wait that ends while the server cannot be reached says which lock it was for, and why there was no answer.
func TestTheEndOfAWaitNamesTheLockAndTheLastFailure(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if away.Load() {
				return errors.New("no way there")
			}
			return nil
		}
	})
	c := startClient(t, pool)
	away.Store(true)
	pool.Reset()
	const within = 1130 * time.Millisecond // in the middle of a pause between two attempts
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for _, err := range []error{
		ignore(c.Acquire(ctx, "x")),
		ignore(c.Acquire(t.Context(), "x", pglock.WithMaxWait(within))),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), `pglock: acquire lock "x": `) ||
			!strings.Contains(err.Error(), "no way there") || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the lock, the last failure and the end of the wait", err)
		}
	}
}
