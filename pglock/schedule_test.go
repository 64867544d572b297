package pglock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// busyServer is a server with one processor, for which each renewal and each statement takes time.
type busyServer struct {
	s         *fakeStore
	each, one time.Duration
	cpu       chan struct{} // 1-buffered
}

func (b *busyServer) renews(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
	b.cpu <- struct{}{}
	defer func() { <-b.cpu }()
	verdicts := b.s.renewed(claims)
	time.Sleep(b.one + time.Duration(len(claims))*b.each)
	return verdicts, nil
}

// A lease of 100 ms is due after 30 to 33 ms, and has then 62 ms left. A statement for others takes 8 ms. So at the
// latest after 42 ms its own renewal is on the way, and there is time for another attempt.
func TestThousandsOfLongLeasesCostNoShortOne(t *testing.T) {
	for name, b := range map[string]*busyServer{
		"as fast as measured": {each: renewCost, one: time.Millisecond},
		"slow and far away":   {each: 3 * renewCost, one: 10 * time.Millisecond},
	} {
		if !pgtest.Among(name, "slow and far away") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b.s, b.cpu = newFakeStore(), make(chan struct{}, 1)
				b.s.onRenewAll = b.renews
				c := startClient(t, b.s, trust.SystemClock())
				const many = 2000
				leases := make([]*Lease, many)
				for i := range leases {
					leases[i] = mustAcquire(t, c, fmt.Sprint("long ", i), WithTTL(12*time.Second))
				}
				leases = append(leases, mustAcquire(t, c, "short", WithTTL(MinTTL)))
				time.Sleep(13 * time.Second)
				for _, l := range leases {
					must.Do(t, l.Err())
				}
				var last, worst time.Duration
				round := 0
				for _, a := range b.s.of("renewAll") {
					if a.names[0] == "short" {
						worst, last = max(worst, a.at-last), a.at
					} else {
						round += len(a.names)
					}
					if n := len(a.names); n > int(MinTTL/holdsUp/renewCost) {
						t.Fatalf("%d leases in one statement", n)
					}
				}
				if worst > MinTTL*2/3 {
					t.Errorf("the short lease was asked for %v after the time before", worst)
				}
				if round < 3*many || round > 4*many {
					t.Errorf("%d renewals of %d leases in 13 s", round, many)
				}
			})
		})
	}
}

// Requests to take back are as many as calls gave up at once, and each of them wants to be gone soon. Leases come
// first.
func TestThousandsOfRequestsToTakeBackCostNoLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
			time.Sleep(3 * backCost)
			return protocol.TakenBack{}, nil
		}
		c := startClient(t, s, trust.SystemClock())
		short, long := mustAcquire(t, c, "short", WithTTL(MinTTL)), mustAcquire(t, c, "long", WithTTL(3*time.Second))
		for i := range 30_000 {
			leaves(c, fmt.Sprint("given up ", i), false)
		}
		time.Sleep(30_000 * 4 * backCost)
		must.Note(t, errors.Join(short.Err(), long.Err()))
		if _, _, n := left(c); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// A statement for leases of five minutes has the time that such leases have, and keeps no other waiting.
func TestAStatementRenewsLeasesOfSimilarTTLOnly(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		ttls := make(map[string]time.Duration)
		limits := make(map[time.Duration]time.Duration)
		s.onRenewAll = func(ctx context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			deadline, _ := ctx.Deadline()
			shortest, longest := MaxTTL, time.Duration(0)
			for _, c := range claims {
				shortest, longest = min(shortest, ttls[c.Name]), max(longest, ttls[c.Name])
			}
			if longest >= 2*shortest {
				t.Errorf("leases of %v and of %v in one statement", shortest, longest)
			}
			s.set(func() { limits[shortest] = time.Until(deadline) })
			return s.renewed(claims), nil
		}
		c := startClient(t, s, trust.SystemClock())
		for _, ms := range []time.Duration{100, 150, 1000, 10_000, 12_000, 60_000, 300_000} {
			ttl := ms * time.Millisecond
			name := ttl.String()
			ttls[name] = ttl
			mustAcquire(t, c, name, WithTTL(ttl))
		}
		time.Sleep(2 * time.Minute)
		s.set(func() {
			for ttl, limit := range limits {
				if want := min(max(ttl*32/100, cutOff), patience); limit < want*9/10 || limit > want*11/10 {
					t.Errorf("a statement for leases of %v may take %v, want about %v", ttl, limit, want)
				}
			}
			if limits[5*time.Minute] == 0 || limits[MinTTL] == 0 {
				t.Errorf("limits of %v", slices.Sorted(maps.Keys(limits)))
			}
		})
	})
}

// The connection of a statement for long leases is silent. Short leases wait for a quarter of their time, looks and
// requests to take back as well; then they go beside it, on another connection. The statement itself has the time of
// its own leases: it may only be slow.
func TestASilentStatementIsLeftBehindAndNotCutOff(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		var hung time.Duration
		s.onRenewAll = func(ctx context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			if claims[0].Name == "long" && hook(s, &hung) == 0 {
				began := time.Now()
				<-ctx.Done()
				s.set(func() { hung = time.Since(began) })
				return nil, ctx.Err()
			}
			return s.renewed(claims), nil
		}
		c := startClient(t, s, trust.SystemClock(), WithSessionTTL(2*time.Second))
		_, result := waiting(t.Context(), t, c, "queued")
		ctx, cancel := context.WithCancel(t.Context())
		id, leaves := waiting(ctx, t, c, "left")
		s.set(func() { s.onAcquire = nil })
		long, short := mustAcquire(t, c, "long", WithTTL(12*time.Second)), mustAcquire(t, c, "short", WithTTL(MinTTL))
		beats := func() (all []call) {
			for _, a := range s.of("renewAll") {
				if a.names[0] == "long" {
					all = append(all, a)
				}
			}
			return all
		}
		for len(beats()) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		began := time.Since(s.began)
		cancel()
		if got := <-leaves; got.at-began > leavePatience || !errors.Is(got.err, ErrHeld) || q.queues(id) {
			t.Errorf("a call that gives up returns after %v with %v; still queued: %v", got.at-began, got.err,
				q.queues(id))
		}
		time.Sleep(3 * time.Second)
		if err := errors.Join(long.Err(), short.Err()); err != nil || hook(s, &hung) != 0 {
			t.Errorf("%v; the silent statement was cut off after %v", err, hook(s, &hung))
		}
		var last, worst time.Duration
		for _, look := range s.of("look") {
			worst, last = max(worst, look.at-last), look.at
		}
		if worst > time.Second {
			t.Errorf("%v between two looks: the session of 2 s is nearly dead", worst)
		}
		time.Sleep(8 * time.Second)
		if err := errors.Join(long.Err(), short.Err()); err != nil || len(beats()) < 2 {
			t.Errorf("%v after %d renewals of the long lease", err, len(beats()))
		}
		if took := hook(s, &hung); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("the silent statement was given up after %v", took)
		}
		still(t, result)
	})
}

// A renewal of a short lease has no answer yet: the lease is asked for again, on another connection. The first
// connection serves others too, and stays open: it may only be slow, and no other may be there.
func TestASlowRenewalOfAShortLeaseCostsNeitherTheLeaseNorTheConnection(t *testing.T) {
	for name, answers := range map[string]bool{"it is answered late": true, "it is never answered": false} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			var slow []time.Duration
			s.onRenewAll = func(ctx context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				if len(s.of("renewAll"))%10 == 5 {
					began := time.Now()
					if answers {
						wait(ctx, time.Second)
					} else {
						<-ctx.Done()
					}
					s.set(func() { slow = append(slow, time.Since(began)) })
					if ctx.Err() != nil {
						return nil, ctx.Err()
					}
				}
				return s.renewed(claims), nil
			}
			l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(MinTTL))
			time.Sleep(10 * time.Second)
			must.Note(t, l.Err())
			s.set(func() {
				want := cutOff
				if answers {
					want = time.Second
				}
				if len(slow) < 10 || slices.Min(slow) != want || slices.Max(slow) != want {
					t.Errorf("%d slow renewals were under way for %v to %v, want %v", len(slow), slices.Min(slow),
						slices.Max(slow), want)
				}
			})
		}))
	}
}

// The renewals of a class come together. One that is under way does not come again with another.
func TestALeaseWhoseRenewalIsUnderWayIsNotAskedForAgain(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = func(ctx context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			if len(s.of("renewAll")) == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return s.renewed(claims), nil
		}
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "silent", WithTTL(3100*time.Millisecond)) // has nearly a second for an answer
		for len(s.of("renewAll")) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		mustAcquire(t, c, "next", WithTTL(1600*time.Millisecond)) // is due after 0.5 s, and waits for 0.25 s
		time.Sleep(900 * time.Millisecond)
		if all := s.of("renewAll"); len(all) != 2 || !slices.Equal(all[1].names, []string{"next"}) {
			t.Errorf("%d renewals, the last of %q", len(all), all[len(all)-1].names)
		}
	})
}

// Clients whose renewals fail at one moment, because the server restarts, come back at different moments, whatever the
// TTL and however many leases they have.
func TestClientsThatFailTogetherComeBackApart(t *testing.T) {
	for _, ttl := range []time.Duration{3 * time.Second, 20 * time.Second, 5 * time.Minute} {
		for _, leases := range []int{1, 50} {
			if !pgtest.EveryTest && leases > 1 && ttl > time.Minute {
				continue // their pauses are those of 20 s
			}
			t.Run(fmt.Sprintf("%v, leases: %d", ttl, leases), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var stores []*fakeStore
					for range 20 {
						s := newFakeStore()
						s.onRenewAll = func(context.Context, []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
							error) {
							return nil, errReset
						}
						c := startClient(t, s, trust.SystemClock())
						for i := range leases {
							mustAcquire(t, c, fmt.Sprint("report ", i), WithTTL(ttl))
						}
						stores = append(stores, s)
					}
					time.Sleep(ttl / 2)
					least := min(ttl/20, 500*time.Millisecond)
					var pauses []time.Duration
					for _, s := range stores {
						all := s.of("renewAll")
						pause := all[1].at - all[0].at
						if pauses = append(pauses, pause); pause < least || pause > 2*least {
							t.Errorf("a pause of %v, want from %v to %v", pause, least, 2*least)
						}
					}
					if spread := slices.Max(pauses) - slices.Min(pauses); spread < least/3 {
						t.Errorf("20 clients came back within %v of each other", spread)
					}
				})
			})
		}
	}
}

// The first attempt has no answer, the second renews the lease. That the first has failed in the end changes nothing.
func TestALateFailureOfARenewalChangesNothing(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = func(ctx context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			if len(s.of("renewAll")) == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return s.renewed(claims), nil
		}
		var failed atomic.Int64
		c := startClient(t, s, trust.SystemClock(), WithObserver(ObserverFunc(func(_ context.Context, e Event) {
			if e.Kind == EventRenewFailed {
				failed.Add(1)
			}
		})))
		l := mustAcquire(t, c, "report", WithTTL(3*time.Second))
		time.Sleep(10 * time.Second)
		if err := l.Err(); err != nil || failed.Load() != 0 {
			t.Errorf("%v, %d failures", err, failed.Load())
		}
		all := s.of("renewAll")
		for i, a := range all[2:] {
			if gap := a.at - all[i+1].at; gap < 900*time.Millisecond || gap > time.Second {
				t.Errorf("renewal %d came %v after the one before", i+2, gap)
			}
		}
	})
}
