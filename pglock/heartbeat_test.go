package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestRenewalComesAfterAThirdOfTheTTLLessUpToATenthOfIt(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		time.Sleep(20 * time.Minute)
		beats := s.of("renewAll")
		if len(beats) < 120 {
			t.Fatalf("%d renewals in 20 minutes", len(beats))
		}
		var last time.Duration
		intervals := make(map[time.Duration]bool)
		for _, b := range beats {
			gap := b.at - last
			last = b.at
			if gap < 9*time.Second || gap > 10*time.Second {
				t.Errorf("a renewal %v after the one before, want from 9s to 10s", gap)
			}
			intervals[gap] = true
		}
		if len(intervals) < 100 {
			t.Errorf("%d renewals at %d different intervals: no jitter", len(beats), len(intervals))
		}
	})
}

func TestOneStatementRenewsHoweverManyLeases(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		const leases = 500
		for i := range leases {
			mustAcquire(t, c, fmt.Sprintf("report %d", i), WithTTL(30*time.Second))
		}
		time.Sleep(55 * time.Second)
		beats := s.of("renewAll")
		if len(beats) < 5 || len(beats) > 6 {
			t.Errorf("%d renewals in 55 s, want one each 9 to 10 s", len(beats))
		}
		for _, b := range beats {
			if len(b.names) != leases {
				t.Errorf("a renewal at %v of %d leases, want all %d", b.at, len(b.names), leases)
			}
		}
	})
}

func TestEachLeaseIsRenewedAtTheRateOfItsOwnTTL(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "short", WithTTL(3*time.Second))
		long := mustAcquire(t, c, "long", WithTTL(5*time.Minute))
		time.Sleep(30 * time.Minute)
		counts := make(map[string]int)
		for _, b := range s.of("renewAll") {
			for _, name := range b.names {
				counts[name]++
			}
		}
		if counts["short"] < 1800 || counts["short"] > 2000 {
			t.Errorf("a lease of 3 s was renewed %d times in 30 minutes, want 1,800 to 2,000", counts["short"])
		}
		// Due every 90 to 100 s; a beat for others takes it along when it is due within 25 s.
		if counts["long"] < 18 || counts["long"] > 28 {
			t.Errorf("a lease of 5 minutes was renewed %d times in 30 minutes, want 18 to 28", counts["long"])
		}
		must.Note(t, long.Err())
	})
}

func TestFailedRenewalIsRetriedUntilTheLocalDeadline(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		broken := errors.New("no route to host")
		s.onRenewAll = func(context.Context, []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			return nil, broken
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		began := time.Now()
		<-l.Context().Done()
		if got, want := time.Since(began), 29*time.Second; got != want {
			t.Errorf("the lease ended after %v, want %v", got, want)
		}
		var lost *LostError
		cause := context.Cause(l.Context())
		if !errors.As(cause, &lost) || lost.Reason != ReasonExpired || !errors.Is(lost.Err, broken) {
			t.Errorf("cause %v, want expired because of %v", cause, broken)
		}
		beats := s.of("renewAll")
		if len(beats) < 19 {
			t.Errorf("%d attempts in 20 s, want one a second", len(beats))
		}
		for i, b := range beats[1:] {
			if gap := b.at - beats[i].at; gap > time.Second {
				t.Errorf("%v between two attempts, want at most a second", gap)
			}
		}
	})
}

func TestOneSuccessfulRetrySavesTheLeaseAndForgetsTheFailure(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		broken := errors.New("no route to host")
		failing := func(context.Context, []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			return nil, broken
		}
		s.onRenewAll = failing
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		time.Sleep(25 * time.Second)
		s.set(func() { s.onRenewAll = nil })
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Fatalf("after the outage: %v", err)
		}
		s.set(func() { s.onRenewAll = hangs })
		<-l.Context().Done()
		if errors.Is(l.Err(), broken) {
			t.Errorf("%v names a failure from before the last success", l.Err())
		}
	})
}

func TestLeaseEndsExactlyAtItsDeadlineWhileTheRenewalHangs(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = hangs
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(10*time.Second))
		began := time.Now()
		<-l.Context().Done()
		if got, want := time.Since(began), 9500*time.Millisecond; got != want {
			t.Errorf("the lease ended after %v, want %v", got, want)
		}
		var lost *LostError
		cause := context.Cause(l.Context())
		cutOff := fmt.Errorf("renew: %w", context.DeadlineExceeded) // the latest attempt was, and none is under way yet
		if !errors.As(cause, &lost) ||
			!strings.Contains(cause.Error(), errSilent.Error()) && !strings.Contains(cause.Error(), cutOff.Error()) {
			t.Errorf("cause %v, want the loss because of attempts without an answer", cause)
		}
		if errors.Is(cause, context.DeadlineExceeded) { // nobody's deadline has passed but the heartbeat's own
			t.Errorf("cause %v is taken for a timeout of the caller's", cause)
		}
	})
}

func TestRenewalThatHangsIsGivenUpWhileThereIsTimeForAnother(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hung := make(chan time.Duration, 10)
		s.onRenewAll = func(ctx context.Context, _ []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			began := time.Now()
			<-ctx.Done()
			hung <- time.Since(began)
			return nil, ctx.Err()
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(9*time.Second))
		if got, left := <-hung, time.Until(l.Deadline()); (got - left).Abs() > time.Millisecond {
			t.Errorf("an attempt was given up after %v, when %v were left, want half of the time that it had", got,
				left)
		}
		s.set(func() { s.onRenewAll = nil })
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Errorf("a second attempt was in time, yet: %v", err)
		}
	})
}

func TestHungRenewalOfALongLeaseCostsNoShorterOne(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hung := make(chan struct{}, 1)
		s.onRenewAll = func(ctx context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			hung <- struct{}{}
			s.set(func() { s.onRenewAll = nil })
			return hangs(ctx, claims)
		}
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "long", WithTTL(24*time.Hour))
		<-hung
		short := mustAcquire(t, c, "short", WithTTL(30*time.Second))
		select {
		case <-short.Context().Done():
			t.Errorf("%v, because a request for another lease hung", short.Err())
		case <-time.After(3 * time.Hour):
		}
	})
}

func TestLockedRowOfALongLeaseCostsNoShortOne(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			verdicts := s.renewed(claims)
			for _, c := range claims {
				if c.Name != "short" {
					verdicts[c] = protocol.Verdict{Outcome: protocol.Busy}
				}
			}
			return verdicts, nil
		}
		s.onRenewBusy = func(ctx context.Context, _ protocol.Claim) (time.Duration, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		c := startClient(t, s, trust.SystemClock())
		for i := range 40 {
			mustAcquire(t, c, fmt.Sprintf("long %d", i), WithTTL(5*time.Minute))
		}
		short := mustAcquire(t, c, "short", WithTTL(3*time.Second))
		select {
		case <-short.Context().Done():
			t.Errorf("%v, because rows of other leases were locked", short.Err())
		case <-time.After(4 * time.Minute):
		}
		if len(s.of("renewBusy")) == 0 {
			t.Error("no row was locked: the test shows nothing")
		}
	})
}

// The rows of many leases are locked for longer than anybody waits. A beat waits briefly for one of them, and asks
// for the others again soon. Every one of them is renewed in time once it is unlocked, and the unlocked ones are
// renewed meanwhile.
func TestBeatWaitsForOneLockedRowAndForAMomentAtMost(t *testing.T) {
	for ttl, most := range map[time.Duration]time.Duration{MinTTL: MinTTL / 12,
		240 * time.Millisecond: 20 * time.Millisecond, time.Second: 30 * time.Millisecond,
		30 * time.Second: 30 * time.Millisecond} {
		t.Run(ttl.String(), fakeClock(func(t *testing.T, s *fakeStore) {
			locked := true
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				verdicts := s.renewed(claims)
				s.set(func() {
					for _, c := range claims {
						if c.Name != "free" && locked {
							verdicts[c] = protocol.Verdict{Outcome: protocol.Busy}
						}
					}
				})
				return verdicts, nil
			}
			s.onRenewBusy = func(context.Context, protocol.Claim) (time.Duration, error) {
				time.Sleep(most)
				return 0, sqlError("55P03")
			}
			c := startClient(t, s, trust.SystemClock())
			var leases []*Lease
			for i := range 20 {
				leases = append(leases, mustAcquire(t, c, fmt.Sprint("locked ", i), WithTTL(ttl)))
			}
			leases = append(leases, mustAcquire(t, c, "free", WithTTL(ttl)))
			time.Sleep(ttl * 8 / 10)
			s.set(func() { locked = false })
			time.Sleep(ttl)
			for _, l := range leases {
				must.Note(t, l.Err())
			}
			var calls []call
			s.set(func() { calls = slices.Clone(s.calls) })
			waits := 0
			for _, c := range calls {
				switch c.what {
				case "renewAll":
					waits = 0
				case "renewBusy":
					if waits++; waits > 1 || c.wait != most {
						t.Fatalf("%d waits in one beat, of %v; want one of %v", waits, c.wait, most)
					}
				}
			}
			asked := s.of("renewBusy")
			if len(asked) < 5 {
				t.Fatalf("%d waits: the test shows nothing", len(asked))
			}
			names := make(map[string]bool)
			for i, a := range asked {
				if names[a.names[0]] = true; i > 0 && a.at-asked[i-1].at > most+10*time.Millisecond {
					t.Errorf("the next wait came %v after the one before", a.at-asked[i-1].at)
				}
			}
			if len(asked) > 60 && len(names) < 15 {
				t.Errorf("%d waits for %d of 20 leases", len(asked), len(names))
			}
		}))
	}
}

func TestRenewalThatBringsNothingIsNotRepeatedAtOnce(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			time.Sleep(time.Millisecond) // a round trip
			return map[protocol.Claim]protocol.Verdict{claims[0]: {Outcome: protocol.Renewed,
				Remaining: time.Second}}, nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		<-l.Context().Done()
		if n := len(s.of("renewAll")); n > 100 {
			t.Errorf("%d requests for one lease in half a minute", n)
		}
	})
}

func TestNoBeatFollowsTheLastLeaseAndTheConnectionIsRested(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		l := mustAcquire(t, c, "report", WithTTL(3*time.Second))
		time.Sleep(10 * time.Second)
		must.Do(t, l.Release(t.Context()))
		before := len(s.of("renewAll"))
		time.Sleep(29 * time.Second)
		if n := len(s.of("rest")); n != 0 {
			t.Errorf("the heartbeat's connection was closed %d times within 29 s of the last lease", n)
		}
		time.Sleep(6 * time.Second) // a sweep after the release, and its time limit, come before
		if n := len(s.of("rest")); n != 1 {
			t.Errorf("the heartbeat's connection was closed %d times within 35 s of the last lease, want once", n)
		}
		time.Sleep(24 * time.Hour)
		if after := len(s.of("renewAll")); after != before {
			t.Errorf("%d renewals after the last lease had ended", after-before)
		}
		l = mustAcquire(t, c, "report", WithTTL(3*time.Second))
		time.Sleep(10 * time.Second)
		if err := l.Err(); err != nil || len(s.of("renewAll")) == before {
			t.Errorf("a lease after the rest: %v, %d renewals", err, len(s.of("renewAll"))-before)
		}
	})
}

// A release may come through long after the last lease, and open the heartbeat's connection again.
func TestTheConnectionOfALateReleaseIsRested(t *testing.T) {
	for name, strays := range map[string]bool{"that tells whom it may have served": false, "of a lost attempt": true} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			c := startClient(t, s, trust.SystemClock())
			l := mustAcquire(t, c, "report", WithTTL(time.Hour))
			away := func() error {
				if time.Since(s.began) < 3*time.Minute {
					return errReset
				}
				return nil
			}
			s.set(func() {
				s.onRelease = func(context.Context, protocol.Claim) (bool, error) { return false, away() }
				s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
					return protocol.TakenBack{Ended: true}, away()
				}
				s.onReason = func(protocol.Claim) (Reason, error) { return ReasonReleased, nil }
			})
			l.strays = strays
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			must.Do(t, l.Release(ctx))
			before := len(s.of("rest"))
			if time.Sleep(2 * idle); len(s.of("rest")) == before {
				t.Errorf("it stays open after the release; it was closed %d times before", before)
			}
		}))
	}
}

func TestLeaseThatIsDueBeforeThePlannedBeatIsRenewedInTime(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "long", WithTTL(24*time.Hour))
		synctest.Wait() // the heartbeat has planned its next beat, hours away
		short := mustAcquire(t, c, "short", WithTTL(300*time.Millisecond))
		time.Sleep(time.Minute)
		must.Note(t, short.Err())
	})
}
