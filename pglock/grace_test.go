package pglock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// The server keeps the lock for the TTL and the grace; its holder believes in the TTL alone.
func TestGraceIsTheServersAndNotTheHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		c := startClient(t, s, trust.SystemClock())
		l, err := c.TryAcquire(t.Context(), "report", WithTTL(time.Minute), WithGrace(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
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
				if err := l.Renew(t.Context()); err != nil {
					t.Fatal(err)
				}
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
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		c := startClient(t, s, trust.SystemClock())
		s.promoted = time.Now()
		time.Sleep(10 * time.Second)
		if _, err := c.TryAcquire(t.Context(), "plain"); err != nil {
			t.Errorf("without a grace: %v", err)
		}
		var held *HeldError
		if _, err := c.TryAcquire(t.Context(), "report", WithGrace(time.Minute)); !errors.As(err, &held) || held.Token != 0 || len(s.of("release")) != 1 ||
			!held.Grace || held.Holder != "" || !strings.Contains(err.Error(), "in the grace after a failover") || held.ExpiresAt.Sub(time.Now().UTC()) != 50*time.Second {
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
		if _, err := c.Acquire(ctx, "other", WithGrace(time.Minute)); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrHeld) || len(s.of("release")) != 2 {
			t.Errorf("a wait that ctx ends: %v, %d releases", err, len(s.of("release")))
		}
	})
}

func TestGraceOutOfRangeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startClient(t, newFakeStore(), trust.SystemClock())
		for _, d := range []time.Duration{-1, MaxTTL} {
			var bad *ArgumentError
			if _, err := c.TryAcquire(t.Context(), "report", WithGrace(d)); !errors.As(err, &bad) || bad.Field != "grace" {
				t.Errorf("grace %v: %v", d, err)
			}
		}
	})
}
