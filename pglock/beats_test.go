package pglock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// More leases than one statement renews: every one is renewed in time, and the statements spread out, even if all
// leases were granted at once.
func TestManyLeasesAreRenewedInSeveralStatementsThatComeApart(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		const leases, least = 3*beatMost - 100, 15 // of six rounds
		for i := range leases {
			mustAcquire(t, c, fmt.Sprint("report ", i), WithTTL(30*time.Second))
		}
		time.Sleep(65 * time.Second)
		renewed := make(map[string]int, leases)
		moments := make(map[time.Duration]int)
		for _, b := range s.of("renewAll") {
			if len(b.names) > beatMost {
				t.Errorf("a statement at %v renews %d leases", b.at, len(b.names))
			}
			for _, name := range b.names {
				renewed[name]++
			}
			moments[b.at]++
		}
		for name, n := range renewed {
			if n < 5 || n > 8 {
				t.Errorf("%s was renewed %d times in 65 s, want every 9 to 10 s", name, n)
				break
			}
		}
		if len(renewed) != leases {
			t.Errorf("%d of %d leases were renewed", len(renewed), leases)
		}
		if len(moments) < least {
			t.Errorf("renewals at %d moments: those of one round come at once", len(moments))
		}
	})
}

// Two clients that start together do not stay together.
func TestBeatsOfClientsSpreadOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stores []*fakeStore
		for range 2 {
			s := newFakeStore()
			c := startClient(t, s, trust.SystemClock())
			for i := range 100 { // the earliest of many draws would be the same for both
				mustAcquire(t, c, fmt.Sprint("report ", i), WithTTL(30*time.Second))
			}
			stores = append(stores, s)
		}
		time.Sleep(10 * time.Minute)
		a, b := stores[0].of("renewAll"), stores[1].of("renewAll")
		var farthest time.Duration
		for i := range min(len(a), len(b)) {
			farthest = max(farthest, (a[i].at - b[i].at).Abs())
		}
		if farthest < time.Second {
			t.Errorf("after %d beats they are %v apart at most", len(a), farthest)
		}
	})
}

// Leases that were granted at different times come to be renewed together, by one statement in each interval.
func TestLeasesOfOneTTLAreRenewedTogetherWheneverTheyWereGranted(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		for i := range 100 {
			mustAcquire(t, c, fmt.Sprint("report ", i), WithTTL(30*time.Second))
			time.Sleep(95 * time.Millisecond)
		}
		before := len(s.of("renewAll"))
		time.Sleep(10 * time.Minute)
		beats := s.of("renewAll")[before:]
		if len(beats) < 60 || len(beats) > 67 {
			t.Errorf("%d renewals in 10 minutes, want one every 9 to 10 s", len(beats))
		}
		for _, b := range beats {
			if len(b.names) != 100 {
				t.Errorf("a renewal at %v of %d leases, want all", b.at, len(b.names))
			}
		}
	})
}

// A lease that cannot be renewed is tried again soon, and the others are left alone meanwhile.
func TestRetryOfOneRenewalDoesNotRenewTheOthers(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		for i := range 100 {
			mustAcquire(t, c, fmt.Sprint("report ", i), WithTTL(30*time.Second))
		}
		s.set(func() {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				verdicts := make(map[protocol.Claim]protocol.Verdict)
				for _, c := range claims {
					verdicts[c] = protocol.Verdict{Outcome: protocol.Renewed, Remaining: 30 * time.Second}
					if c.Name == "report 7" {
						verdicts[c] = protocol.Verdict{Outcome: protocol.Busy}
					}
				}
				return verdicts, nil
			}
			s.onRenewBusy = func(context.Context, protocol.Claim) (time.Duration, error) { return 0, errReset }
		})
		time.Sleep(19 * time.Second)
		whole := 0
		for _, b := range s.of("renewAll") {
			if len(b.names) > 50 {
				whole++
			}
		}
		if n := len(s.of("renewAll")); whole > 2 || n < 4 {
			t.Errorf("%d renewals in 19 s, %d of them of nearly all leases, want 2 of all and more of the one", n,
				whole)
		}
	})
}

// Leases that come and go before anybody looks leave the plan that was made for the first of them, so the next ones
// wake neither the heartbeat nor the watch. When nothing comes any more, both rest.
func TestLeasesThatComeAndGoWakeNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startClient(t, newFakeStore(), trust.SystemClock())
		plans := func() [2]time.Duration {
			synctest.Wait()
			c.leases.mu.Lock()
			defer c.leases.mu.Unlock()
			return [2]time.Duration{c.leases.nextBeat, c.leases.nextDeadline}
		}
		pair := func(ttl time.Duration) {
			must.Do(t, mustAcquire(t, c, "report", WithTTL(ttl)).Release(t.Context()))
		}
		synctest.Wait()
		pair(30 * time.Second)
		first := plans()
		now := c.now().Mono
		if first[0] <= now || first[0] > now+10*time.Second || first[1] <= now || first[1] > now+time.Second {
			t.Errorf("after the first lease the plans are %v, at %v", first, now)
		}
		time.Sleep(time.Second / 2)
		pair(time.Hour) // due later
		if got := plans(); got != first {
			t.Errorf("a later lease moved the plans from %v to %v", first, got)
		}
		pair(3 * time.Second)
		if got := plans(); got[0] >= first[0] || got[0] > c.now().Mono+time.Second {
			t.Errorf("a lease that is due sooner left the plan at %v, it was %v", got[0], first[0])
		}
		time.Sleep(time.Minute)
		if got := plans(); got != [2]time.Duration{never, never} {
			t.Errorf("a minute later the plans are %v", got)
		}
	})
}
