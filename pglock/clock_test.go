package pglock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// movedClock is the system's clock with both readings moved.
type movedClock struct {
	base time.Time

	mu         sync.Mutex
	mono, wall time.Duration
}

func newMovedClock() *movedClock { return &movedClock{base: time.Now()} }

func (m *movedClock) now() trust.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	return trust.Instant{Mono: now.Sub(m.base) + m.mono, Wall: now.Round(0).Add(m.wall)}
}

func (m *movedClock) move(mono, wall time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mono, m.wall = m.mono+mono, m.wall+wall
}

// heldWithClock is a lease of 30 s whose renewals hang.
func heldWithClock(t *testing.T, m *movedClock) *Lease {
	t.Helper()
	s := newFakeStore()
	s.onRenewAll = hangs
	l := mustAcquire(t, startClient(t, s, m.now), "report", WithTTL(30*time.Second))
	synctest.Wait()
	return l
}

func TestI7_MachineThatSleptPastTheTTLDistrustsItsLeaseInItsFirstInstruction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMovedClock()
		l := heldWithClock(t, m)
		m.move(0, 29*time.Second) // suspended: the monotonic clock stood still
		if l.Valid() || !errors.Is(l.Err(), ErrLost) {
			t.Errorf("after the machine slept through the lease Err() = %v", l.Err())
		}
		if !errors.Is(context.Cause(l.Context()), ErrLost) {
			t.Errorf("cause %v, want ErrLost", context.Cause(l.Context()))
		}
	})
}

func TestI7_ContextEndsWithinASecondAfterTheMachineSleptPastTheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMovedClock()
		l := heldWithClock(t, m)
		m.move(0, time.Hour)
		select {
		case <-l.Context().Done():
		case <-time.After(time.Second + time.Millisecond):
			t.Error("the context of a lease that ended while the machine slept is alive a second after")
		}
	})
}

func TestI7_ShortSleepOfTheMachineShortensTrustByAsMuch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMovedClock()
		l := heldWithClock(t, m)
		m.move(0, 20*time.Second)
		began := time.Now()
		if !l.Valid() {
			t.Fatal(l.Err())
		}
		<-l.Context().Done()
		if got := time.Since(began); got != 9*time.Second {
			t.Errorf("trusted for %v after 20 of 29 s asleep, want 9s", got)
		}
	})
}

// The timer of the renewal stood still with the machine.
func TestMachineThatSleptForLessThanTheTTLKeepsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, s := newMovedClock(), newFakeStore()
		l := mustAcquire(t, startClient(t, s, m.now), "report", WithTTL(30*time.Second))
		synctest.Wait()
		m.move(0, 20*time.Second)
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		if n := len(s.of("renewAll")); n != 1 {
			t.Errorf("%d renewals within a second, want one", n)
		}
		time.Sleep(time.Minute)
		must.Note(t, l.Err())
	})
}

func TestI7_WallClockSetBackLengthensNoTrust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMovedClock()
		l := heldWithClock(t, m)
		m.move(0, -24*time.Hour)
		began := time.Now()
		<-l.Context().Done()
		if got := time.Since(began); got != 29*time.Second {
			t.Errorf("trusted for %v, want 29s by the monotonic clock", got)
		}
	})
}

func TestWallClockSetForwardOnlyShortensTrust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMovedClock()
		s := newFakeStore()
		l := mustAcquire(t, startClient(t, s, m.now), "report", WithTTL(30*time.Second))
		time.Sleep(time.Minute)
		m.move(0, 5*time.Second) // as a step of NTP would
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Errorf("a step of 5 s cost a lease that is renewed every 10: %v", err)
		}
		m.move(0, -5*time.Second)
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Errorf("a step back of 5 s cost the lease: %v", err)
		}
		m.move(0, time.Minute)
		if l.Valid() {
			t.Error("trusted a minute past its deadline by the wall clock")
		}
	})
}

func TestTrustEndsATwentiethOfTheTTLAndAtMostASecondBeforeTheExpiry(t *testing.T) {
	for _, tc := range []struct{ ttl, remaining, want time.Duration }{
		{100 * time.Millisecond, 100 * time.Millisecond, 95 * time.Millisecond},
		{10 * time.Second, 10 * time.Second, 9500 * time.Millisecond},
		{20 * time.Second, 20 * time.Second, 19 * time.Second},
		{24 * time.Hour, 24 * time.Hour, 24*time.Hour - time.Second},
		{10 * time.Second, 4 * time.Second, 3800 * time.Millisecond},  // the server says less
		{10 * time.Second, 40 * time.Second, 9500 * time.Millisecond}, // the server says more
	} {
		sent := trust.Instant{Mono: time.Minute, Wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
		got := trust.Deadline(sent, tc.ttl, tc.remaining)
		if got.Mono-sent.Mono != tc.want || got.Wall.Sub(sent.Wall) != tc.want {
			t.Errorf("TTL %v, %v left: trusted for %v and %v, want %v", tc.ttl, tc.remaining, got.Mono-sent.Mono,
				got.Wall.Sub(sent.Wall), tc.want)
		}
	}
}

func TestExtensionNeitherShortensNorRevives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startClient(t, newFakeStore(), trust.SystemClock())
		l := mustAcquire(t, c, "report", WithTTL(30*time.Second))
		sent := c.now()
		l.extend(sent.Add(time.Second), protocol.Verdict{Remaining: 30 * time.Second}, 0)
		later := l.Deadline()
		l.extend(sent, protocol.Verdict{Remaining: 30 * time.Second}, 0)
		l.extend(sent.Add(2*time.Second), protocol.Verdict{Remaining: time.Second}, 0)
		if !l.Deadline().Equal(later) {
			t.Errorf("an earlier request or a shorter answer moved the deadline by %v", l.Deadline().Sub(later))
		}
		l.end(ErrReleased)
		l.extend(sent.Add(time.Hour), protocol.Verdict{Remaining: 30 * time.Second}, 0)
		if !l.Deadline().Equal(later) || l.Valid() {
			t.Errorf("an ended lease was extended by %v, Err() = %v", l.Deadline().Sub(later), l.Err())
		}
	})
}

// However late the loss is noticed, its event has the time of the deadline: of a machine that slept, whose monotonic
// clock stood still, as of a program that did not run.
func TestLossThatIsNoticedLateIsObservedWithTheTimeOfTheDeadline(t *testing.T) {
	for name, slept := range map[string]bool{"the machine slept": true, "the program stood still": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n notes
				m := newMovedClock()
				l := mustAcquire(t, startClient(t, newFakeStore(), m.now, WithObserver(&n)), "report",
					WithTTL(30*time.Second))
				synctest.Wait()
				granted := time.Now()
				if m.move(0, time.Hour); !slept {
					m.move(time.Hour, 0)
				}
				if !errors.Is(l.Err(), ErrLost) {
					t.Fatalf("Err() = %v", l.Err())
				}
				synctest.Wait()
				e := n.of(EventLost)[0]
				// The time of the event is of a clock that did not move.
				if began := e.At.Add(time.Hour - e.Held); e.Held != 29*time.Second || !began.Equal(granted) {
					t.Errorf("held for %v from %v after the grant, want 29s from then", e.Held, began.Sub(granted))
				}
			})
		})
	}
}
