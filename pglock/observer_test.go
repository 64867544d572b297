package pglock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// notes is an observer that keeps what it is told.
type notes struct {
	mu     sync.Mutex
	events []Event
	ctxs   []context.Context
}

func (n *notes) Observe(ctx context.Context, e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events, n.ctxs = append(n.events, e), append(n.ctxs, ctx)
}

// of gives the events of these kinds, in order.
func (n *notes) of(kinds ...EventKind) (some []Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.events {
		if slices.Contains(kinds, e.Kind) {
			some = append(some, e)
		}
	}
	return some
}

// kinds are those of the events of a lock, but for the heartbeat's, in order.
func (n *notes) kinds(lock string) (all []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.events {
		if e.Lock == lock && e.Kind != EventRenew {
			all = append(all, string(e.Kind))
		}
	}
	return all
}

func wantKinds(t *testing.T, n *notes, lock string, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := n.kinds(lock); !slices.Equal(got, want) {
		t.Errorf("lock %q: events %q, want %q", lock, got, want)
	}
}

func TestGrantOfAFreeLockAndItsReleaseAreObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		c := startClient(t, newFakeStore(), trust.SystemClock(), WithObserver(&n), WithDefaultHolder("me"))
		l := mustAcquire(t, c, "report", WithTTL(time.Minute), WithLimit(3))
		time.Sleep(5 * time.Second)
		must.Do(t, l.Release(t.Context()))
		err := l.Release(t.Context())
		if says := `pglock: release lock "report": lease is released`; !errors.Is(err, ErrReleased) || err.Error() != says {
			t.Fatalf("a second release: %v", err)
		}
		wantKinds(t, &n, "report", "grant", "release")
		for _, e := range n.events {
			at := time.Now()
			if e.Kind == EventGrant {
				at = at.Add(-5 * time.Second)
			}
			if e.Lock != "report" || e.Mode != ModeLimit || e.Token != l.Token() || e.Holder != "me" ||
				e.TTL != time.Minute || !e.At.Equal(at) {
				t.Errorf("event %+v", e)
			}
		}
		if held := n.of(EventRelease)[0].Held; held != 5*time.Second {
			t.Errorf("held for %v", held)
		}
	})
}

func TestFailedCallIsObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		s := newFakeStore()
		queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		if _, err := c.TryAcquire(t.Context(), "tried"); !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		if _, err := c.Acquire(t.Context(), "waited", WithMaxWait(3*time.Second)); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err := c.Acquire(t.Context(), "invalid", WithTTL(1)); !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
		wantKinds(t, &n, "tried", "failed")
		wantKinds(t, &n, "waited", "wait", "failed")
		wantKinds(t, &n, "invalid")
		all := n.of(EventFailed)
		if !errors.Is(all[0].Err, ErrHeld) || all[0].Waited != 0 || all[0].Place != 0 {
			t.Errorf("of a try: %+v", all[0])
		}
		if !errors.Is(all[1].Err, ErrHeld) || all[1].Waited != 3*time.Second || all[1].Place != 1 {
			t.Errorf("of a wait: %+v", all[1])
		}
		s.set(func() { s.onAcquire = nil })
		if _, err := c.Acquire(t.Context(), "late", WithTTL(time.Second), func(r *request) error {
			s.set(func() {
				s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
					time.Sleep(2 * time.Second)
					return protocol.Answer{Granted: true, Token: 77, Remaining: time.Second}, nil
				}
			})
			return nil
		}); !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
		wantKinds(t, &n, "late", "failed")
	})
}

func TestEachLossIsObservedOnceWithItsCause(t *testing.T) {
	verdict := func(outcome string) func(*fakeStore, *Lease) {
		return func(s *fakeStore, _ *Lease) {
			s.set(func() {
				s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
					error) {
					return map[protocol.Claim]protocol.Verdict{claims[0]: {Outcome: outcome}}, nil
				}
			})
			time.Sleep(11 * time.Second)
		}
	}
	for name, tc := range map[string]struct {
		lose   func(s *fakeStore, l *Lease)
		reason Reason
		held   time.Duration
		work   bool // went on after the loss, for what was left of a minute
	}{
		"at the deadline": {func(s *fakeStore, l *Lease) {
			s.set(func() { s.onRenewAll = hangs })
			time.Sleep(time.Minute)
		}, ReasonExpired, 29 * time.Second, true},
		"broken":     {verdict(string(ReasonBroken)), ReasonBroken, 10 * time.Second, true},
		"taken over": {verdict(string(ReasonTakenOver)), ReasonTakenOver, 10 * time.Second, true},
		"unknown":    {verdict(string(ReasonUnknown)), ReasonUnknown, 10 * time.Second, true},
		"by a check": {func(s *fakeStore, l *Lease) {
			s.set(func() { s.onReason = func(protocol.Claim) (Reason, error) { return ReasonBroken, nil } })
			_, _ = l.Check(context.Background())
		}, ReasonBroken, 0, true},
		"by a renewal of its own": {func(s *fakeStore, l *Lease) {
			s.set(func() {
				s.onRenew = func(context.Context, protocol.Claim) (time.Duration, error) {
					return 0, sqlError(protocol.StateExpired)
				}
			})
			_ = l.renew(context.Background())
		}, ReasonExpired, 0, true},
		"by a busy row": {func(s *fakeStore, l *Lease) {
			s.set(func() {
				s.onRenewBusy = func(context.Context, protocol.Claim) (time.Duration, error) {
					return 0, sqlError(protocol.StateExpired)
				}
			})
			verdict(protocol.Busy)(s, l)
		}, ReasonExpired, 10 * time.Second, true},
		"by the release": {func(s *fakeStore, l *Lease) {
			s.set(func() {
				s.onRelease = func(context.Context, protocol.Claim) (bool, error) { return false, nil }
				s.onReason = func(protocol.Claim) (Reason, error) { return ReasonTakenOver, nil }
			})
		}, ReasonTakenOver, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n notes
				s := newFakeStore()
				c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
				l := mustAcquire(t, c, "report", WithTTL(30*time.Second))
				began := time.Now()
				tc.lose(s, l)
				synctest.Wait()
				lost := time.Since(began)
				time.Sleep(time.Minute - lost)
				if err := l.Release(t.Context()); !errors.Is(err, ErrLost) {
					t.Fatalf("Release: %v", err)
				}
				_ = l.Release(t.Context())
				synctest.Wait()
				wantKinds(t, &n, "report", slices.DeleteFunc(n.kinds("report"), func(kind string) bool {
					return kind != "grant" && kind != "renew failed" && kind != "lost" && kind != "outlived"
				})...)
				all, outlived := n.of(EventLost), n.of(EventOutlived)
				if len(all) != 1 || len(outlived) != 1 {
					t.Fatalf("lost %+v, outlived %+v", all, outlived)
				}
				e := all[0]
				var why *LostError
				if e.Reason != tc.reason || !errors.As(e.Err, &why) || why.Reason != tc.reason || e.Token != l.Token() {
					t.Errorf("lost: %+v", e)
				}
				if tc.held > 0 && (e.Held < tc.held-time.Second || e.Held > tc.held) {
					t.Errorf("held for %v, want %v", e.Held, tc.held)
				}
				if late := outlived[0].Late; outlived[0].Reason != tc.reason || tc.work && late != time.Minute-e.Held ||
					!tc.work && late != 0 {
					t.Errorf("work outlived the lease of %v by %v: %+v", e.Held, late, outlived[0])
				}
			})
		})
	}
}

func TestLossThatTheReleaseIsTheFirstToNoticeIsObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		var paused atomic.Int64
		system := trust.SystemClock()
		c := startClient(t, newFakeStore(), func() trust.Instant {
			return system().Add(time.Duration(paused.Load()))
		}, WithObserver(&n))
		l := mustAcquire(t, c, "report", WithTTL(30*time.Second))
		synctest.Wait()                       // the heartbeat has planned its next beat
		paused.Store(int64(40 * time.Second)) // no timer has noticed that yet
		if err := l.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
		wantKinds(t, &n, "report", "grant", "lost", "outlived")
		lost, outlived := n.of(EventLost), n.of(EventOutlived)
		if lost[0].Held != 29*time.Second || lost[0].Gap != 40*time.Second || outlived[0].Late != 11*time.Second {
			t.Errorf("lost %+v, outlived %+v", lost, outlived)
		}
	})
}

func TestWorkThatOutlivesItsLeaseInDoIsObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		s := newFakeStore()
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		s.set(func() { s.onRenewAll = hangs })
		err := c.Do(t.Context(), "report", func(ctx context.Context, _ *Lease) error {
			<-ctx.Done()
			time.Sleep(4 * time.Second)
			return nil
		}, WithTTL(30*time.Second))
		if !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
		synctest.Wait()
		if all := n.of(EventOutlived); len(all) != 1 || all[0].Late < 4*time.Second || all[0].Late > 5*time.Second ||
			all[0].Reason != ReasonExpired {
			t.Errorf("events %+v", all)
		}
		s.set(func() { s.onRenewAll = nil })
		must.Do(t, c.Do(t.Context(), "other", func(context.Context, *Lease) error { return nil }))
		wantKinds(t, &n, "other", "grant", "release")
	})
}

// tenuresOnce checks that each grant has one end, after it.
func tenuresOnce(t *testing.T, events []Event) {
	t.Helper()
	type tenure struct {
		lock  string
		token Token
	}
	held, over := make(map[tenure]bool), make(map[tenure]bool)
	for _, e := range events {
		of := tenure{e.Lock, e.Token}
		switch granted := e.Kind == EventGrant; {
		case granted && held[of], !granted && (!held[of] || over[of]):
			t.Errorf("%v comes a second time, or without a grant", e)
		case granted:
			held[of] = true
		default:
			over[of] = true
		}
	}
	for of := range held {
		if !over[of] {
			t.Errorf("%v has no end", of)
		}
	}
}

// However the calls of several clients end, each grant and its end come once and in this order.
func TestEventsOfALeaseComeInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		all := make([]notes, 3)
		var clients []*Client
		var calls sync.WaitGroup
		for i := range all {
			c := s.client(t, WithObserver(&all[i]))
			clients = append(clients, c)
			for n := range 40 {
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%7+1)*20*time.Millisecond)
					defer cancel()
					l, err := c.Acquire(ctx, "report", WithTTL(time.Second))
					if err != nil {
						return
					}
					if n%10 == 0 {
						s.does(ctx, "break", func() { s.rows["report"].until = time.Now() })
						time.Sleep(2 * time.Second)
					}
					_ = l.Release(ctx)
				})
			}
		}
		calls.Wait()
		for i, c := range clients {
			must.Note(t, c.Close(t.Context()))
			tenuresOnce(t, all[i].of(EventGrant, EventRelease, EventLost))
			if waits, ends := len(all[i].of(EventWait)), len(all[i].of(EventGrant, EventFailed)); ends != 40 ||
				waits > 40 || waits < 30 {
				t.Errorf("of 40 calls %d waits and %d ends were observed", waits, ends)
			}
		}
	})
}

func TestPollingAndItsEndAreObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		s := newFakeStore() // whose connection hears nothing
		queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		waiting(t.Context(), t, c, "report")
		time.Sleep(20 * time.Second)
		polling := n.of(EventPolling)
		if len(polling) < 2 || polling[0].Count != 1 || polling[1].Count != 2 || polling[1].Took <= 0 ||
			polling[0].Err == nil || polling[0].Connection != connectionListener {
			t.Fatalf("events %+v", polling)
		}
		if back := n.of(EventReconnect); len(back) > 0 {
			t.Fatalf("events %+v", back)
		}
		hearing(s)
		time.Sleep(time.Minute)
		back := n.of(EventReconnect)
		if len(back) != 1 || back[0].Connection != connectionListener || back[0].Took < 15*time.Second ||
			back[0].Err == nil {
			t.Errorf("events %+v", back)
		}
	})
}

// A lease that is renewed for longer than an hour is told of once, with the first renewal after that; one that ends
// before is not.
func TestTheObserverHearsOnceOfALeaseThatIsHeldForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		c := startClient(t, newFakeStore(), trust.SystemClock(), WithObserver(&n))
		long, brief := mustAcquire(t, c, "leader", WithTTL(30*time.Second)), mustAcquire(t, c, "report")
		time.Sleep(59 * time.Minute)
		if err := brief.Release(t.Context()); err != nil || len(n.of(EventHeldLong)) > 0 {
			t.Errorf("before an hour: %v, %v", err, n.of(EventHeldLong))
		}
		time.Sleep(2 * time.Hour)
		got := n.of(EventHeldLong)
		if len(got) != 1 || got[0].Lock != "leader" || got[0].Token != long.Token() ||
			got[0].Held < time.Hour || got[0].Held > time.Hour+10*time.Second {
			t.Errorf("%+v, want one, of the lease that is held, after an hour", got)
		}
	})
}
