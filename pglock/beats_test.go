package pglock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// More leases than one statement renews: every one is renewed in time, and the statements come apart from each other, also
// when all leases were granted in one moment.
func TestManyLeasesAreRenewedInSeveralStatementsThatComeApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		c := startClient(t, s, systemClock())
		const leases = 3*beatMost - 100
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
		if len(moments) < 15 {
			t.Errorf("renewals at %d moments: those of one round come at once", len(moments))
		}
	})
}

// Two clients that start together do not stay together.
func TestBeatsOfClientsSpreadOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stores []*fakeStore
		for range 2 {
			s := newFakeStore()
			c := startClient(t, s, systemClock())
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
