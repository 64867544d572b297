package pglock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// moments are when calls came, in whole seconds.
func moments(calls []call) (at []int) {
	for _, c := range calls {
		at = append(at, int(c.at.Round(time.Second)/time.Second))
	}
	return at
}

// However long the TTL is, and however many leases there are: one statement every ten seconds.
func TestAHolderGivesASignOfLifeEveryTenSeconds(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		for i := range 1000 {
			mustAcquire(t, c, fmt.Sprint("report ", i), WithTTL(time.Hour))
		}
		time.Sleep(65 * time.Second)
		signs := s.of("sign")
		if got := fmt.Sprint(moments(signs)); got != "[10 20 30 40 50 60]" {
			t.Errorf("signs at %s", got)
		}
		for _, sign := range signs {
			if sign.wait < time.Hour || sign.wait > time.Hour+signEvery {
				t.Errorf("a sign that the client holds something for %v", sign.wait)
			}
		}
		if n := len(s.of("sweep")); n > 1 {
			t.Errorf("%d sweeps after one grant, want no more than one: signs are no work", n)
		}
	})
}

func TestALeaseThatEndsSoonCostsNoSign(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		for range 5 {
			l := mustAcquire(t, c, "report", WithTTL(time.Hour))
			time.Sleep(9 * time.Second)
			must.Do(t, l.Release(t.Context()))
		}
		time.Sleep(time.Minute)
		if signs := s.of("sign"); len(signs) != 0 {
			t.Errorf("signs at %v", moments(signs))
		}
	})
}

// Renewals of the lease are signs, unless they come too rarely. So a short lease does not hide a long one.
func TestRenewalsInTimeAreSigns(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "short", WithTTL(30*time.Second))
		time.Sleep(65 * time.Second)
		if signs := s.of("sign"); len(signs) != 0 {
			t.Errorf("signs at %v beside renewals at %v", moments(signs), moments(s.of("renewAll")))
		}
		mustAcquire(t, c, "long", WithTTL(time.Hour))
		time.Sleep(35 * time.Second)
		if got := fmt.Sprint(moments(s.of("sign"))); got != "[75 85 95]" {
			t.Errorf("signs at %s, want them for the long lease from 75 s on", got)
		}
	})
}

// An extended lease lasts long after its client has died, so the server hears how long.
func TestAnExtendedLeaseIsToldWithSigns(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		l := mustAcquire(t, c, "report", WithTTL(30*time.Second))
		must.Get(l.Extend(t.Context(), time.Hour))(t)
		time.Sleep(35 * time.Second)
		signs := s.of("sign")
		if len(signs) != 4 || signs[0].wait < 59*time.Minute {
			t.Errorf("signs at %v, want them every ten seconds, with an hour", moments(signs))
		}
	})
}

// A sign names the locks that the client may hold for the longest: by these names people find what a dead one held.
func TestASignNamesTheLocksThatAreHeldForTheLongest(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		for n := range 25 {
			mustAcquire(t, c, fmt.Sprintf("lock %d", n), WithTTL(time.Hour+time.Duration(n)*time.Minute))
		}
		time.Sleep(15 * time.Second)
		signs := s.of("sign")
		if len(signs) != 1 || len(signs[0].names) != 20 || signs[0].names[0] != "lock 24" ||
			signs[0].names[19] != "lock 5" {
			t.Errorf("signs with %v, want one with the twenty longest", signs)
		}
	})
}

func TestLooksAreSigns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		holder, waiter := s.client(t), s.client(t)
		l := mustAcquire(t, holder, "b", WithTTL(20*time.Second))
		mustAcquire(t, waiter, "a", WithTTL(time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		if _, err := waiter.Acquire(ctx, "b"); err == nil {
			t.Fatal("two have the lock")
		}
		if signs := s.of("sign"); len(signs) != 0 || l.Err() != nil {
			t.Errorf("signs at %v while the client looks; %v", moments(signs), l.Err())
		}
		time.Sleep(26 * time.Second)
		if got := fmt.Sprint(moments(s.of("sign"))); got != "[65 75 85]" && got != "[64 74 84]" {
			t.Errorf("signs at %s, want the first within ten seconds of what the server noted last", got)
		}
	})
}

func TestASignThatFailsIsRepeatedSoon(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		fails := 3
		s.onSign = func(context.Context) error {
			if fails--; fails >= 0 {
				return errors.New("no connection")
			}
			return nil
		}
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "report", WithTTL(time.Hour))
		time.Sleep(19 * time.Second)
		signs := s.of("sign")
		if len(signs) != 4 {
			t.Fatalf("signs at %v, want three that fail and one", moments(signs))
		}
		for i, sign := range signs[1:] {
			if pause := sign.at - signs[i].at; pause < signPause/2 || pause > signPause {
				t.Errorf("a sign %v after one that failed", pause)
			}
		}
	})
}

// A sign that hangs holds up no renewal.
func TestASignThatHangsCostsNoLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onSign = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		c := startClient(t, s, trust.SystemClock())
		long, short := mustAcquire(t, c, "long", WithTTL(time.Hour)), mustAcquire(t, c, "short", WithTTL(MinTTL))
		time.Sleep(time.Minute)
		must.Note(t, errors.Join(long.Err(), short.Err()))
	})
}

// Who holds or waits has a connection to the new leader soon after that takes writes; who does neither needs none.
func TestWhoLosesItsConnectionGivesASignOfLifeSoon(t *testing.T) {
	for name, has := range map[string]func(t *testing.T, s *fakeStore, c *Client){
		"holds": func(t *testing.T, _ *fakeStore, c *Client) { mustAcquire(t, c, "report", WithTTL(time.Hour)) },
		"waits": func(t *testing.T, s *fakeStore, c *Client) {
			queued(s, time.Hour)
			waiting(t.Context(), t, c, "report")
			s.set(func() {
				s.onLook = func(context.Context, []int64) (map[int64]protocol.Sighting, error) { return nil, errReset }
			})
		},
		"neither": func(*testing.T, *fakeStore, *Client) {},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			c := startClient(t, s, trust.SystemClock())
			has(t, s, c)
			time.Sleep(3 * time.Second)
			s.set(func() { s.onSign = func(context.Context) error { return errReset } })
			s.trouble.Lost()
			time.Sleep(5500 * time.Millisecond)
			s.set(func() { s.onSign = nil })
			time.Sleep(signPause + time.Millisecond)
			signs := s.of("sign")
			if name == "neither" {
				if len(signs) > 0 {
					t.Errorf("signs at %v", moments(signs))
				}
				return
			}
			if len(signs) < 8 || len(signs) > 18 || signs[0].at > 3*time.Second+signPause ||
				signs[len(signs)-1].at < 8500*time.Millisecond {
				t.Errorf("%d signs, want one in each %v from the loss until it was answered: %v", len(signs),
					signPause, signs)
			}
			time.Sleep(500 * time.Millisecond)
			if n := len(s.of("sign")); n != len(signs) {
				t.Errorf("%d more soon after", n-len(signs))
			}
		}))
	}
}

// Clients that lose their connections at once do not come back at once.
func TestSignsAfterALossAreSpreadOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const clients, parts = 200, 7
		var in [parts]int
		for range clients {
			s := newFakeStore()
			mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(time.Hour))
			s.trouble.Lost()
			time.Sleep(signPause)
			synctest.Wait()
			for _, sign := range s.of("sign") {
				in[min(sign.at*parts/signPause, parts-1)]++
			}
		}
		for _, n := range in {
			if n < clients/parts/4 || n > clients/parts*2 {
				t.Errorf("%v signs in each seventh of %v, want about as many in each", in, signPause)
			}
		}
	})
}
