package pglock

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestDoKeepsTheLeaseUntilItsFunctionHasReturnedAlsoAfterItWasCancelled(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Do(ctx, "report", func(ctx context.Context, l *Lease) error {
			cancel()
			<-ctx.Done()
			if context.Cause(ctx) != context.Canceled {
				t.Errorf("fn's context ended with cause %v, want context.Canceled", context.Cause(ctx))
			}
			time.Sleep(5 * time.Minute) // winds down
			if !l.Valid() {
				t.Errorf("while fn winds down: %v", l.Err())
			}
			if n := len(s.of("release")); n != 0 {
				t.Errorf("%d releases before fn returned", n)
			}
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
			t.Errorf("Do = %v, want fn's error", err)
		}
		if beats := len(s.of("renewAll")); beats < 30 {
			t.Errorf("%d renewals in 5 minutes, want 30 or more", beats)
		}
		if n := len(s.of("release")); n != 1 {
			t.Errorf("%d releases, want 1", n)
		}
	})
}

// fn may have to save its work after its context has ended, and that may take longer than a TTL.
func TestDoKeepsTheLeaseExtensibleAfterItWasCancelled(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		newLongServer(s, 3*time.Second)
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Do(ctx, "report", func(ctx context.Context, l *Lease) error {
			cancel()
			<-ctx.Done()
			defer mustExtend(t, l, time.Hour)()
			if left := time.Until(l.Deadline()); left < 59*time.Minute {
				t.Errorf("extended by an hour, and trusted for %v", left)
			}
			if over := hooks.Of(l).Life(); over.Err() != nil {
				t.Errorf("the lease is over while fn winds down: %v", context.Cause(over))
			}
			_ = l.Release(t.Context())
			if over := hooks.Of(l).Life(); context.Cause(over) != ErrReleased {
				t.Errorf("released, and its life ended with %v", context.Cause(over))
			}
			return nil
		}, WithTTL(3*time.Second))
		if err != nil {
			t.Error(err)
		}
	})
}

func TestDoReleasesWhenItsFunctionPanics(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		defer func() {
			if got := recover(); got != "on purpose" {
				t.Errorf("recovered %v, want fn's panic", got)
			}
			if n := len(s.of("release")); n != 1 {
				t.Errorf("%d releases, want 1", n)
			}
		}()
		_ = c.Do(t.Context(), "report", func(context.Context, *Lease) error { panic("on purpose") })
	})
}

func TestDoReleasesWhenItsFunctionEndsTheGoroutine(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		ended, returned := make(chan struct{}), false
		go func() {
			defer close(ended)
			_ = c.Do(t.Context(), "report", func(context.Context, *Lease) error { runtime.Goexit(); return nil })
			returned = true
		}()
		<-ended
		if n := len(s.of("release")); n != 1 || returned {
			t.Errorf("%d releases, Do returned: %v; want one release and no return", n, returned)
		}
	})
}

func TestDoTellsOfALossBesideTheErrorOfItsFunction(t *testing.T) {
	own := errors.New("fn's own")
	for name, result := range map[string]error{"nil": nil, "an error": own} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				return map[protocol.Claim]protocol.Verdict{claims[0]: {Outcome: string(ReasonBroken)}}, nil
			}
			err := startClient(t, s, trust.SystemClock()).Do(t.Context(), "report",
				func(ctx context.Context, _ *Lease) error {
					<-ctx.Done()
					if !errors.Is(context.Cause(ctx), ErrLost) {
						t.Errorf("fn's context ended with cause %v, want ErrLost", context.Cause(ctx))
					}
					return result
				})
			var lost *LostError
			if !errors.As(err, &lost) || lost.Reason != ReasonBroken || !errors.Is(err, ErrLost) {
				t.Errorf("Do = %v, want the break", err)
			}
			if result != nil && !errors.Is(err, result) {
				t.Errorf("Do = %v hides fn's error", err)
			}
			if n := len(s.of("release")); n != 0 {
				t.Errorf("%d releases of a broken lease", n)
			}
		}))
	}
}

func TestDoRunsNothingWithoutTheLock(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		queued(s, time.Hour)
		err := startClient(t, s, trust.SystemClock()).Do(t.Context(), "report",
			func(context.Context, *Lease) error { t.Error("fn ran"); return nil }, WithMaxWait(time.Second))
		if !errors.Is(err, ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do = %v, want ErrHeld and context.DeadlineExceeded", err)
		}
	})
}

func TestDoAcceptsThatItsFunctionReleasesTheLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		err := startClient(t, s, trust.SystemClock()).Do(t.Context(), "report",
			func(ctx context.Context, l *Lease) error {
				err := l.Release(ctx)
				if context.Cause(ctx) != ErrReleased {
					t.Errorf("fn's context ended with cause %v, want ErrReleased", context.Cause(ctx))
				}
				return err
			})
		if n := len(s.of("release")); err != nil || n != 1 {
			t.Errorf("Do = %v with %d releases, want nil with one", err, n)
		}
	})
}

// Close ends the lease while fn works: what fn did after that it did without the lock, whatever it returns.
func TestDoTellsThatCloseHasTakenTheLease(t *testing.T) {
	own := errors.New("fn's own")
	for name, result := range map[string]error{"nil": nil, "an error": own} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			c := startClient(t, s, trust.SystemClock())
			err := c.Do(t.Context(), "report", func(ctx context.Context, _ *Lease) error {
				if err := c.Close(t.Context()); err != nil {
					t.Errorf("Close: %v", err)
				}
				<-ctx.Done()
				return result
			})
			if !errors.Is(err, ErrClosed) || result != nil && !errors.Is(err, result) {
				t.Errorf("Do = %v, want ErrClosed and fn's error", err)
			}
		}))
	}
	t.Run("after its own release", fakeClock(func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		err := c.Do(t.Context(), "report", func(ctx context.Context, l *Lease) error {
			return errors.Join(l.Release(ctx), c.Close(t.Context()))
		})
		if err != nil {
			t.Errorf("Do = %v, want nil: fn had released the lease", err)
		}
	}))
}
