package fencedstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// patience bounds a wait for something that happens at once unless the code is broken.
const patience = 20 * time.Second

// The context of a write's callback ends when any of its leases does, the last as well as the first: by a break that
// the client hears of, or by a release. Its cause says which lease and why, and nothing of the write stays, though the
// callback may return nil.
func TestCallbackOfAWriteUnderSeveralFencesEndsWithAnyLease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	ends := map[string]struct {
		end func(ctx context.Context, l *pglock.Lease)
		is  error
	}{
		"broken": {func(ctx context.Context, l *pglock.Lease) {
			b.breaks(t, l)
			if _, err := l.Check(ctx); !errors.Is(err, pglock.ErrLost) {
				t.Errorf("the check after a break: %v", err)
			}
		}, pglock.ErrLost},
		"released": {func(ctx context.Context, l *pglock.Lease) { _ = l.Release(ctx) }, pglock.ErrReleased},
	}
	for what, end := range ends {
		for n := range 3 {
			if t.Failed() {
				return // each waits for long
			}
			t.Run(fmt.Sprint(what, " ", n), func(t *testing.T) {
				var fences fencedstore.Fences
				for i := range 3 {
					fences = append(fences, fencedstore.Fence{Lease: b.acquire(t, fmt.Sprint(t.Name(), i))})
				}
				lost := fences[n].Lease
				err := b.store.Write(t.Context(), fences, func(ctx context.Context, tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `INSERT INTO done VALUES (1)`); err != nil {
						return err
					}
					end.end(t.Context(), lost)
					select {
					case <-ctx.Done():
					case <-time.After(patience):
						t.Fatalf("lease %d has ended, and the callback goes on", n)
					}
					if cause := context.Cause(ctx); !errors.Is(cause, end.is) || !errors.Is(cause, lost.Err()) {
						t.Errorf("the cause is %v, want that of lease %d: %v", cause, n, lost.Err())
					}
					return nil
				})
				if !errors.Is(err, end.is) {
					t.Errorf("the write: %v, want %v", err, end.is)
				}
			})
		}
	}
	b.wantRows(t, 0, `done`)
}

// Do keeps the lease while fn winds down, so that fn can still write under its fence.
func TestWorkThatWindsDownCanWrite(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE done (n int)`)
	ctx, cancel := context.WithCancel(t.Context())
	err := b.client.Do(ctx, "report", func(ctx context.Context, l *pglock.Lease) error {
		cancel()
		<-ctx.Done()
		ctx = context.WithoutCancel(ctx)
		long := b.store.With(fencedstore.WithTimeLimit(time.Hour))
		return long.Write(ctx, l, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO done VALUES (1)`)
			return err
		})
	})
	if err != nil {
		t.Error(err)
	}
	b.wantRows(t, 1, `done`)
}

// A lease that its own holder releases while a write commits is released, and not lost: somebody else's release would
// be. At which step of the write the release comes is left to chance.
func TestAWriteWhoseOwnHolderReleasesTheLeaseSaysSo(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	for _, name := range []string{"Write", "Write of several", "WriteSQL", "WriteSQL of several"} {
		t.Run(name, func(t *testing.T) {
			refused := 0
			for n := 0; n < 200 && refused < 5; n++ {
				l := b.acquire(t, t.Name())
				over, released := make(chan struct{}), make(chan error, 1)
				go func() {
					<-over
					time.Sleep(time.Duration(n%8) * 100 * time.Microsecond) // the chaos of this test
					released <- l.Release(t.Context())
				}()
				err := ways[name](t, b, l, func(context.Context, transaction) error {
					close(over)
					return nil
				})
				must.Note(t, <-released)
				if err != nil {
					refused++
				}
				if err != nil && !errors.Is(err, pglock.ErrReleased) || errors.Is(err, pglock.ErrLost) {
					t.Fatalf("round %d: %v, want ErrReleased", n, err)
				}
			}
			if refused == 0 {
				t.Error("no release came in time to refuse anything")
			}
		})
	}
}

// Whoever reads the error of a callback that was cut off learns first that the lease is lost, and of which write, and
// then what the callback has said.
func TestAWriteThatIsCutOffTellsTheLossFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "report")
	err := b.store.Write(t.Context(), l, func(ctx context.Context, tx pgx.Tx) error {
		b.exec(t, `SELECT pglock.break_lock('report', 'test', 'test')`)
		if _, err := l.Check(ctx); !errors.Is(err, pglock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		<-ctx.Done()
		return fmt.Errorf("half way: %w", ctx.Err())
	})
	want := fmt.Sprintf(`fencedstore: write to resource "report": lease of lock "report" with token %d is lost: broken: `+
		`half way: context canceled`, l.Token())
	if err == nil || err.Error() != want || !errors.Is(err, pglock.ErrLost) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v\nwant %s, an ErrLost and the callback's own error", err, want)
	}
}

// A write under a subtree's lease whose row is another grant's by now has not left its fence: the lease is lost.
func TestAGuardTellsTheLossOfASubtreesLease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE tenants (id int, n int); INSERT INTO tenants VALUES (7, 0)`)
	b.guard(t, "tenants", fencedstore.WithTableKey("id"))
	other := b.withClient(t)
	for name, reason := range map[string]pglock.Reason{
		"Write": pglock.ReasonBroken, "WriteSQL": pglock.ReasonTakenOver, "Guard": pglock.ReasonBroken,
		"Guard of several": pglock.ReasonTakenOver,
	} {
		l := b.acquire(t, "tenants", pglock.WithSubtree())
		var next *pglock.Lease
		err := ways[name](t, b, l, func(ctx context.Context, tx transaction) error {
			if err := tx.exec(ctx, `UPDATE tenants SET n = 1 WHERE id = 7`); err != nil {
				t.Errorf("%s: a write under the subtree: %v", name, err)
			}
			if reason == pglock.ReasonBroken {
				b.breaks(t, l)
			} else {
				b.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 ms' WHERE name = 'tenants'`)
			}
			next = must.Get(other.client.Acquire(ctx, "tenants", pglock.WithSubtree()))(t)
			return tx.exec(ctx, `UPDATE tenants SET n = 2 WHERE id = 7`)
		})
		lost, is := errors.AsType[*pglock.LostError](err)
		if !is || lost.Lock != "tenants" || lost.Token != l.Token() || lost.Reason != reason ||
			errors.Is(err, fencedstore.ErrUnfenced) {
			t.Errorf("%s: %v, want a LostError: %s", name, err, reason)
		}
		release(t, next)
	}
	b.wantRows(t, 1, `tenants WHERE n = 0`)
}

// The context of fn ends with the lease, and the calls that end the lease go on.
func TestACallOfFnThatEndsTheLeaseFreesTheLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, end := range map[string]func(context.Context, *pglock.Client, *pglock.Lease) error{
		"Release": func(ctx context.Context, _ *pglock.Client, l *pglock.Lease) error { return l.Release(ctx) },
		"Close":   func(ctx context.Context, c *pglock.Client, _ *pglock.Lease) error { return c.Close(ctx) },
	} {
		own := b.withClient(t)
		lease := own.acquire(t, name)
		called := false
		_ = own.store.Write(t.Context(), lease, func(ctx context.Context, _ pgx.Tx) error {
			called = true
			if err := end(ctx, own.client, lease); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			b.acquire(t, name)
			return nil
		})
		if !called {
			t.Errorf("%s: the write was refused", name)
		}
	}
}
