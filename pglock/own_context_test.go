package pglock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// ownContexts are contexts that end with a lease.
var ownContexts = map[string]func(ctx context.Context, ls *Leases) (context.Context, context.CancelFunc){
	"of a lease": func(_ context.Context, ls *Leases) (context.Context, context.CancelFunc) {
		return ls.all[0].Context(), func() {}
	},
	"of several leases": func(_ context.Context, ls *Leases) (context.Context, context.CancelFunc) {
		return ls.Context(), func() {}
	},
	"below a lease's": func(_ context.Context, ls *Leases) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ls.all[1].Context(), 4*time.Second)
	},
	"beside a lease's, as in a write": func(ctx context.Context, ls *Leases) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		own := ls.all[2].Context()
		stop := context.AfterFunc(own, func() { cancel(context.Cause(own)) })
		return ctx, func() { stop(); cancel(nil) }
	},
}

// A call that ends leases goes on although it has ended its own context with them. The server takes a while.
func TestWhatEndsALeaseMayBeCalledUnderAContextThatEndsWithIt(t *testing.T) {
	slowly := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
			return nil
		}
	}
	for name, under := range ownContexts {
		for what, call := range map[string]func(context.Context, *Client, *Leases) error{
			"Close":          func(ctx context.Context, c *Client, _ *Leases) error { return c.Close(ctx) },
			"Leases.Release": func(ctx context.Context, _ *Client, ls *Leases) error { return ls.Release(ctx) },
			"Release": func(ctx context.Context, _ *Client, ls *Leases) error {
				var errs []error
				for _, l := range ls.All() {
					errs = append(errs, l.Release(ctx))
				}
				return errors.Join(errs...)
			},
		} {
			t.Run(what+" under a context "+name, fakeClock(func(t *testing.T, s *fakeStore) {
				s.onRelease = func(ctx context.Context, _ protocol.Claim) (bool, error) { return true, slowly(ctx) }
				s.onReleaseAll = func(ctx context.Context, _ []protocol.Claim) error { return slowly(ctx) }
				c := startClient(t, s, trust.SystemClock())
				ls, err := c.AcquireAll(t.Context(), []string{"a", "b", "c"})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := under(t.Context(), ls)
				defer cancel()
				if err := call(ctx, c, ls); err != nil {
					t.Error(err)
				}
			}))
		}
	}
}

// The caller's own end of such a context counts, and so does its deadline.
func TestUnderALeasesContextTheCallersOwnEndCounts(t *testing.T) {
	for name, tc := range partings {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onRelease = func(ctx context.Context, _ protocol.Claim) (bool, error) {
				<-ctx.Done()
				return false, ctx.Err()
			}
			c := startClient(t, s, trust.SystemClock())
			outer, l := mustAcquire(t, c, "outer"), mustAcquire(t, c, "report")
			ctx, cancel := tc.make(outer.Context())
			defer cancel()
			began := time.Now()
			if err := l.Release(ctx); !errors.Is(err, tc.want) || time.Since(began) != tc.lasts {
				t.Errorf("Release = %v after %v, want %v after %v", err, time.Since(began), tc.want, tc.lasts)
			}
		}))
	}
}

// Close under a context that ends with its leases keeps its limits, and under any other the cause of its end.
func TestCloseUnderALeasesContextIsLimitedAsUnderAnother(t *testing.T) {
	why := errors.New("the program has enough of it")
	for name, tc := range map[string]struct {
		under func(ctx context.Context, l *Lease) (context.Context, context.CancelFunc)
		lasts time.Duration
		want  error
	}{
		"the lease's": {func(_ context.Context, l *Lease) (context.Context, context.CancelFunc) {
			return l.Context(), func() {}
		}, 5 * time.Second, context.DeadlineExceeded},
		"the lease's, with a deadline": {func(_ context.Context, l *Lease) (context.Context, context.CancelFunc) {
			return context.WithTimeout(l.Context(), 7*time.Second)
		}, 7 * time.Second, context.DeadlineExceeded},
		"another": {func(ctx context.Context, _ *Lease) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Second, func() { cancel(why) })
			return ctx, func() { cancel(nil) }
		}, time.Second, why},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onReleaseAll = func(ctx context.Context, _ []protocol.Claim) error { <-ctx.Done(); return ctx.Err() }
			c := startClient(t, s, trust.SystemClock())
			ctx, cancel := tc.under(t.Context(), mustAcquire(t, c, "report"))
			defer cancel()
			began := time.Now()
			if err := c.Close(ctx); !errors.Is(err, tc.want) || time.Since(began) != tc.lasts {
				t.Errorf("Close = %v after %v, want %v after %v", err, time.Since(began), tc.want, tc.lasts)
			}
		}))
	}
}
