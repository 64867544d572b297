package pglock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/trust"
)

// A client that has something to do sweeps the tables about once a minute; one that has nothing to do does not.
func TestClientWithAHeartbeatSweepsOnceAMinute(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		time.Sleep(time.Hour)
		if n := len(s.of("sweep")); n != 0 {
			t.Errorf("%d sweeps of a client that does nothing", n)
		}
		l := mustAcquire(t, c, "report", WithTTL(3*time.Second))
		began := time.Since(s.began)
		time.Sleep(time.Hour)
		sweeps := s.of("sweep")
		for i, sweep := range sweeps[1:] {
			if gap := sweep.at - sweeps[i].at; gap < time.Minute || gap > time.Minute+2*time.Second {
				t.Errorf("a sweep %v after the one before", gap)
			}
		}
		if n := len(sweeps); n < 57 || n > 61 || sweeps[0].at-began > 2*time.Second {
			t.Errorf("%d sweeps in an hour, the first after %v", n, sweeps[0].at-began)
		}
		must.Note(t, l.Release(t.Context()))
		time.Sleep(time.Hour)
		if n := len(s.of("sweep")); n > len(sweeps)+1 {
			t.Errorf("%d sweeps in the hour after", n-len(sweeps))
		}
	})
}

// Of many clients one sweeps in a minute. The others ask now and then whether it still does.
func TestClientThatFindsThatAnotherSweepsAsksLessOften(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		var alone atomic.Bool
		s.onSweep = func(context.Context) (swept, more bool, err error) { return alone.Load(), false, nil }
		mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(3*time.Second))
		time.Sleep(30 * othersSweep)
		sweeps := s.of("sweep")
		for i, sweep := range sweeps[1:] {
			gap := sweep.at - sweeps[i].at
			if sweep.wait != sweptLately || gap < sweepEvery || gap > othersSweep+2*time.Second {
				t.Errorf("after %v: unless somebody has swept within %v", gap, sweep.wait)
			}
		}
		if n := len(sweeps); n < 36 || n > 90 {
			t.Errorf("asked %d times in %v, want once in 5.5 minutes", n, 30*othersSweep)
		}
		alone.Store(true)
		time.Sleep(othersSweep + 2*time.Second)
		before := len(s.of("sweep"))
		time.Sleep(time.Hour)
		if n := len(s.of("sweep")) - before; n < 57 {
			t.Errorf("%d sweeps in an hour when nobody else sweeps", n)
		}
	})
}

func TestSweepThatHangsCostsNoLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onSweep = func(ctx context.Context) (swept, more bool, err error) {
			<-ctx.Done()
			return false, false, ctx.Err()
		}
		c := startClient(t, s, trust.SystemClock())
		short, long := mustAcquire(t, c, "short", WithTTL(MinTTL)), mustAcquire(t, c, "long", WithTTL(time.Minute))
		time.Sleep(3 * othersSweep)
		if err := errors.Join(short.Err(), long.Err()); err != nil || len(s.of("sweep")) < 3 {
			t.Errorf("%v after %d sweeps", err, len(s.of("sweep")))
		}
	})
}

// Leases that end before their first renewal are work, too.
func TestClientWithShortWorkSweepsOnceAMinute(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		for range 3600 {
			l := mustAcquire(t, c, "report", WithTTL(time.Minute))
			time.Sleep(50 * time.Millisecond)
			must.Do(t, l.Release(t.Context()))
			time.Sleep(950 * time.Millisecond)
		}
		if n := len(s.of("sweep")); n < 50 || n > 61 {
			t.Errorf("%d sweeps in an hour", n)
		}
	})
}

// Whoever has left some goes on, also when it has no work any more, unless another one does.
func TestClientThatLeavesSomeSweepsAgainSoon(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onSweep = func(context.Context) (swept, more bool, err error) {
			n := len(s.of("sweep"))
			return n < 10, n != 5, nil
		}
		c := startClient(t, s, trust.SystemClock())
		time.Sleep(sweepEvery)
		l := mustAcquire(t, c, "report", WithTTL(3*time.Second))
		time.Sleep(30 * time.Second)
		if n := len(s.of("sweep")); n != 5 {
			t.Fatalf("%d sweeps, want five", n)
		}
		for len(s.of("sweep")) < 7 {
			time.Sleep(10 * time.Millisecond)
		}
		must.Do(t, l.Release(t.Context()))
		time.Sleep(time.Hour)
		sweeps := s.of("sweep")
		if len(sweeps) != 10 {
			t.Fatalf("%d sweeps, want five more until somebody else sweeps", len(sweeps))
		}
		for i, sweep := range sweeps {
			switch after := sweep.at - sweeps[max(0, i-1)].at; {
			case i == 0, i == 5:
				if sweep.wait != sweptLately || i == 5 && after < sweepEvery {
					t.Errorf("sweep %d after %v, unless somebody has swept within %v", i, after, sweep.wait)
				}
			case after < sweepOn || after > sweepOn+100*time.Millisecond || sweep.wait != sweepOn:
				t.Errorf("sweep %d after %v, unless somebody has swept within %v", i, after, sweep.wait)
			}
		}
	})
}
