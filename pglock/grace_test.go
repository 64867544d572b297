package pglock

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// The server keeps the lock for the TTL and the grace; its holder believes in the TTL alone.
func TestGraceIsTheServersAndNotTheHolders(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		l := must.Get(c.TryAcquire(t.Context(), "report", WithTTL(time.Minute), WithGrace(time.Hour)))(t)
		if r := s.of("acquire")[0].request; r.TTL+r.Grace != time.Minute+time.Hour {
			t.Errorf("asked for %v", r.TTL+r.Grace)
		}
		s.set(func() {
			s.onRenewAll = func(context.Context, []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
				return nil, errors.New("no answer")
			}
		})
		for _, renew := range []bool{false, true} {
			if renew {
				must.Do(t, l.renew(t.Context()))
			}
			if left := time.Until(l.Deadline()); left > time.Minute || left < 50*time.Second {
				t.Errorf("trusted for %v, want nearly the TTL", left)
			}
			if left, err := l.Check(t.Context()); err != nil || left > time.Minute {
				t.Errorf("Check: %v, %v", left, err)
			}
		}
		time.Sleep(time.Minute)
		if l.Valid() || !errors.Is(l.Err(), ErrLost) {
			t.Errorf("in the grace the lease answers %v", l.Err())
		}
	})
}

func TestGraceAfterAFailoverIsSatOutWithTheLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		s.promoted = time.Now()
		time.Sleep(10 * time.Second)
		if _, err := c.TryAcquire(t.Context(), "plain"); err != nil {
			t.Errorf("without a grace: %v", err)
		}
		var held *HeldError
		if _, err := c.TryAcquire(t.Context(), "report", WithGrace(time.Minute)); !errors.As(err, &held) ||
			held.Token != 0 || len(s.of("release")) != 1 ||
			!held.Grace || held.Holder != "" || !strings.Contains(err.Error(), "in the grace after a failover") ||
			held.ExpiresAt.Sub(time.Now().UTC()) != 50*time.Second {
			t.Errorf("TryAcquire: %v, %d releases", err, len(s.of("release")))
		}
		began := time.Now()
		l, err := c.Acquire(t.Context(), "report", WithGrace(time.Minute))
		if err != nil || time.Since(began) != 50*time.Second || l.Err() != nil {
			t.Fatalf("Acquire: %v after %v", err, time.Since(began))
		}
		if len(s.of("beat")) == 0 {
			t.Error("the lease was not renewed meanwhile")
		}
		s.promoted = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Acquire(ctx, "other", WithGrace(time.Minute)); !errors.Is(err, context.DeadlineExceeded) ||
			!errors.Is(err, ErrHeld) || len(s.of("release")) != 2 {
			t.Errorf("a wait that ctx ends: %v, %d releases", err, len(s.of("release")))
		}
	})
}

// Nobody could say whether there was a failover: the call asks again, as it does for the lock.
func TestGraceOutlivesALostConnection(t *testing.T) {
	for name, fails := range map[string]func(ctx context.Context) error{
		"reset":   func(context.Context) error { return errReset },
		"no slot": func(context.Context) error { return sqlError("53300") },
		"standby": func(context.Context) error { return sqlError("25006") },
		"silent":  func(ctx context.Context) error { time.Sleep(10 * time.Second); return context.DeadlineExceeded },
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			c := startClient(t, s, trust.SystemClock())
			s.promoted = time.Now()
			s.onTimeline = fails
			time.AfterFunc(15*time.Second, func() { s.set(func() { s.onTimeline = nil }) })
			l, err := c.Acquire(t.Context(), "report", WithGrace(time.Minute))
			if err != nil || time.Since(s.began) != time.Minute || !l.Valid() {
				t.Fatalf("Acquire: %v after %v", err, time.Since(s.began))
			}
			if n := len(s.of("timeline")); n > 100 {
				t.Errorf("asked %d times", n)
			}
			time.Sleep(time.Hour) // no failover lately
			s.set(func() { s.onTimeline = fails })
			time.AfterFunc(5*time.Second, func() { s.set(func() { s.onTimeline = nil }) })
			if _, err := c.TryAcquire(t.Context(), "other", WithGrace(time.Minute)); err != nil {
				t.Errorf("TryAcquire: %v", err)
			}
		}))
	}
}

func TestGraceThatNobodyCanTellFailsInTheEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		ends  func(c *Client, l *Lease, cancel func()) // after five seconds; nil: nobody has to
		want  error
		after time.Duration
	}{
		"without a server for long": {func(*Client, *Lease, func()) {}, errReset, outage},
		"when ctx ends": {func(_ *Client, _ *Lease, cancel func()) {
			cancel()
		}, context.Canceled, 5 * time.Second},
		"when the lease is lost": {func(_ *Client, l *Lease, _ func()) {
			l.end(&LostError{Lock: "report", Reason: ReasonBroken})
		}, ErrLost, 5 * time.Second},
		"when the client is closed": {func(c *Client, _ *Lease, _ func()) {
			_ = c.Close(context.WithoutCancel(t.Context()))
		}, ErrClosed, 5 * time.Second},
		"with a refusal": {nil, ErrPermission, 0},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			c := startClient(t, s, trust.SystemClock())
			s.onTimeline = func(context.Context) error { return errReset }
			if tc.ends == nil {
				s.onTimeline = func(context.Context) error { return sqlError("42501") }
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			held := func() (l *Lease) {
				c.leases.mu.Lock()
				defer c.leases.mu.Unlock()
				for l = range c.leases.all {
				}
				return l
			}
			if tc.ends != nil {
				time.AfterFunc(5*time.Second, func() { tc.ends(c, held(), cancel) })
			}
			_, err := c.Acquire(ctx, "report", WithGrace(time.Minute), WithTTL(time.Hour))
			if took := time.Since(s.began); !errors.Is(err, tc.want) || took < tc.after-lastAgain ||
				took > tc.after {
				t.Errorf("%v after %v, want %v after %v", err, took, tc.want, tc.after)
			}
			synctest.Wait()
			if held() != nil {
				t.Error("the client keeps the lease")
			}
		}))
	}
}

func TestGraceOutOfRangeIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startClient(t, newFakeStore(), trust.SystemClock())
		for _, d := range []time.Duration{-1, MaxTTL, math.MaxInt64} {
			var bad *ArgumentError
			if _, err := c.TryAcquire(t.Context(), "report", WithGrace(d)); !errors.As(err, &bad) ||
				bad.Field != "grace" {
				t.Errorf("grace %v: %v", d, err)
			}
		}
	})
}

// The call returns soon after its context has ended, also if the server is silent; its grant is taken back.
func TestACallWithAGraceReturnsSoonAfterTheEndOfItsContext(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onTimeline = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		s.onRelease = func(ctx context.Context, _ protocol.Claim) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := c.Acquire(ctx, "report", WithGrace(time.Minute))
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Second+leavePatience {
			t.Errorf("%v after %v, want the end of ctx within a quarter of a second", err, took)
		}
		time.Sleep(time.Second)
		if n := len(s.of("giveUp")); n == 0 {
			t.Error("the grant was not taken back")
		}
	})
}

// An attempt whose answer was lost may still arrive, so the end of the lease spends its grant ID; but that ends the
// lease at the server too, and must not do so while the grace keeps others out.
func TestI6_ALostLeaseKeepsItsGraceAlsoIfItsGrantIDIsSpent(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second),
			WithGrace(time.Minute))
		l.mu.Lock()
		l.strays = true
		l.mu.Unlock()
		s.set(func() {
			s.onRenewAll = func(context.Context, []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
				return nil, errReset
			}
		})
		<-l.Context().Done()
		time.Sleep(59 * time.Second)
		if n := len(s.of("giveUp")); n != 0 {
			t.Error("taken back before its grace was over")
		}
		time.Sleep(2 * time.Second)
		if all := s.of("giveUp"); len(all) != 1 || !all[0].spend {
			t.Errorf("taken back by %+v, want once, so that the grant ID is spent", all)
		}
	})
}

// The defaults are checked together, whatever their order, before any call uses them.
func TestADefaultGraceThatDoesNotFitTheDefaultTTLIsRefused(t *testing.T) {
	t.Parallel()
	ttl, grace := WithDefaultTTL(MaxTTL), WithDefaultGrace(time.Second)
	for _, opts := range [][]Option{{ttl, grace}, {grace, ttl}, {WithDefaultGrace(-1)}} {
		var bad *ArgumentError
		if _, err := newConfig(opts); !errors.As(err, &bad) || bad.Field != "grace" {
			t.Errorf("%v, want that the grace is refused", err)
		}
	}
}
