package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestCloseTellsOfAllEndsAndJoinsTheObserver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		c := startClient(t, newFakeStore(), trust.SystemClock(), WithObserver(&n))
		for i := range 100 {
			mustAcquire(t, c, fmt.Sprint("report ", i))
		}
		must.Do(t, c.Close(t.Context()))
		tenuresOnce(t, n.of(EventGrant, EventRelease)) // without a wait: Close has joined the goroutine
		if _, err := c.TryAcquire(t.Context(), "report"); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(n.events) != 200 {
			t.Errorf("%d events", len(n.events))
		}
	})
}

func TestBlockingObserverHoldsUpNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []Event
		block := make(chan struct{})
		c := startClient(t, newFakeStore(), trust.SystemClock(),
			WithObserver(ObserverFunc(func(_ context.Context, e Event) {
				<-block
				told = append(told, e)
			})))
		began := time.Now()
		kept := mustAcquire(t, c, "kept", WithTTL(3*time.Second))
		synctest.Wait() // the observer has its first event, and blocks
		for range observedMost {
			must.Do(t, mustAcquire(t, c, "report").Release(t.Context()))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("%d locks took %v", observedMost, took)
		}
		time.Sleep(time.Minute)
		if err := kept.Err(); err != nil {
			t.Errorf("a lease was not renewed: %v", err)
		}
		close(block)
		synctest.Wait()
		if len(told) < 3 || told[0].Kind != EventGrant || told[1].Kind != EventObserver || told[1].Panics != 0 ||
			told[2].Kind != EventGrant || len(told) > observedMost+2 {
			t.Errorf("told %d, first %+v", len(told), told[:min(3, len(told))])
		}
		sum := len(told) - 1 + told[1].Count
		if beats := 60; sum < 1+2*observedMost+beats || sum > 2+2*observedMost+2*beats {
			t.Errorf("told of %d, dropped %d", len(told), told[1].Count)
		}
	})
}

func TestCloseWaitsASecondForAnObserver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		told := 0
		c := startClient(t, newFakeStore(), trust.SystemClock(),
			WithObserver(ObserverFunc(func(context.Context, Event) {
				told++
				<-block
			})))
		mustAcquire(t, c, "report")
		mustAcquire(t, c, "other")
		began := time.Now()
		if err := c.Close(t.Context()); err == nil || !strings.Contains(err.Error(), "observer") ||
			time.Since(began) != observedLast {
			t.Errorf("after %v Close returned: %v", time.Since(began), err)
		}
		close(block)
		synctest.Wait()
		if told != 1 {
			t.Errorf("after Close the observer was told %d more events", told-1)
		}
	})
}

func TestPanickingObserverIsToldOfItsPanicsAndGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		angry := ObserverFunc(func(ctx context.Context, e Event) {
			if e.Kind == EventGrant {
				panic("no grants, please")
			}
		})
		c := startClient(t, newFakeStore(), trust.SystemClock(), WithObserver(angry), WithObserver(nil),
			WithObserver(ObserverFunc(nil)), WithObserver(&n))
		for range 3 {
			must.Do(t, mustAcquire(t, c, "report").Release(t.Context()))
			synctest.Wait()
		}
		if len(n.of(EventGrant)) != 3 || len(n.of(EventRelease)) != 3 {
			t.Errorf("the second observer was told %+v", n.events)
		}
		told := n.of(EventObserver)
		if len(told) != 3 || told[0].Panics != 1 || told[0].Count != 0 || !strings.Contains(told[0].Err.Error(),
			"no grants, please") {
			t.Errorf("told of panics: %+v", told)
		}
	})
}

func TestEventsHaveTheValuesOfTheirCallAndNeverEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var n notes
		s := newFakeStore()
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "acquire"))
		l := must.Get(c.TryAcquire(ctx, "report"))(t)
		lost := must.Get(c.TryAcquire(ctx, "lost", WithTTL(time.Second)))(t)
		cancel()
		must.Do(t, l.Release(context.WithValue(ctx, key{}, "release")))
		time.Sleep(500 * time.Millisecond)
		s.set(func() { s.onRenewAll = hangs })
		time.Sleep(5 * time.Second)
		_ = lost.Release(context.WithValue(ctx, key{}, "late"))
		synctest.Wait()
		want := map[EventKind]any{EventGrant: "acquire", EventRelease: "release", EventRenew: nil,
			EventRenewFailed: nil, EventLost: "acquire", EventOutlived: "late"}
		seen := make(map[EventKind]bool)
		for i, e := range n.events {
			seen[e.Kind] = true
			if got := n.ctxs[i].Value(key{}); got != want[e.Kind] || n.ctxs[i].Err() != nil || n.ctxs[i].Done() != nil {
				t.Errorf("the context of %q has the value %v and the error %v", e.Kind, got, n.ctxs[i].Err())
			}
		}
		for kind := range want {
			if !seen[kind] {
				t.Errorf("there was no event %q", kind)
			}
		}
	})
}

// The observer hears of a release when the server has confirmed it, or when nobody asks any more.
func TestTheObserverHearsWhatWasNotReleased(t *testing.T) {
	for name, fails := range map[string]bool{"away": true, "there": false} {
		t.Run("Close, the server is "+name, fakeClock(func(t *testing.T, s *fakeStore) {
			var n notes
			s.onAcquire = func(_ context.Context, asked call) (protocol.Answer, error) {
				if asked.names[0] == "stray" && len(s.of("acquire")) == 1 {
					return protocol.Answer{}, errReset
				}
				return s.grants(asked.request), nil
			}
			c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
			for _, name := range []string{"stray", "a", "b"} {
				mustAcquire(t, c, name)
			}
			s.set(func() { s.onGiveUp = goesBack(fails) })
			if fails {
				s.set(func() {
					s.onReleaseAll = func(context.Context, []protocol.Claim) error { return errReset }
				})
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := c.Close(ctx); (err != nil) != fails {
				t.Errorf("Close: %v", err)
			}
			told := n.of(EventRelease)
			for _, e := range told {
				if (e.Err != nil) != fails {
					t.Errorf("%s: the event says %v", e.Lock, e.Err)
				}
			}
			if len(told) != 3 {
				t.Errorf("%d events, want 3", len(told))
			}
		}))
		t.Run("AcquireAll, the server is "+name, fakeClock(func(t *testing.T, s *fakeStore) {
			var n notes
			s.onAcquire = heldByAnother("c", s)
			s.onGiveUp = goesBack(fails)
			c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
			if _, err := c.AcquireAll(t.Context(), []string{"a", "b", "c"}, WithMaxWait(0)); !errors.Is(err, ErrHeld) {
				t.Fatal(err)
			}
			synctest.Wait()
			told := n.of(EventRelease)
			for _, e := range told {
				if (e.Err != nil) != fails {
					t.Errorf("%s: the event says %v", e.Lock, e.Err)
				}
			}
			if len(told) != 2 {
				t.Errorf("%d events, want 2", len(told))
			}
		}))
	}
}

// goesBack answers that a lease has ended, or fails.
func goesBack(fails bool) func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
	return func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
		if fails {
			return protocol.TakenBack{}, errReset
		}
		return protocol.TakenBack{Ended: true}, nil
	}
}

// heldByAnother grants every lock but one.
func heldByAnother(name string, s *fakeStore) func(context.Context, call) (protocol.Answer, error) {
	return func(_ context.Context, asked call) (protocol.Answer, error) {
		if asked.names[0] == name {
			return protocol.Answer{Token: 5, Holder: "the other"}, nil
		}
		return s.grants(asked.request), nil
	}
}

// Where the server says that an ended lease was gone before, the observer hears of the loss; unless an attempt whose
// answer was lost may have ended the lease.
func TestTheObserverHearsOfALossThatTheLastWordsFind(t *testing.T) {
	for name, tc := range map[string]struct {
		all    bool   // AcquireAll ends the lease, not Close
		loses  string // the first answer to this is lost
		breaks bool   // an operator does, before the end
		want   string
		err    error
	}{
		"Close":                                      {false, "", true, "lost", ErrLost},
		"Close, an attempt may be under way":         {false, "acquire", true, "lost", ErrLost},
		"Close, its answer is lost":                  {false, "releaseAll", false, "release", ErrOutcomeUnknown},
		"Close, nothing is lost":                     {false, "acquire", false, "release", nil},
		"AcquireAll":                                 {true, "", true, "lost", ErrLost},
		"AcquireAll, the answer of the last is lost": {true, "giveUp", false, "release", ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n notes
				var lost atomic.Bool
				s := newFakeServer()
				s.fault = func(what string, done bool) error {
					if done && what == tc.loses && !lost.Swap(true) {
						return errReset
					}
					return nil
				}
				other, c := s.client(t), s.client(t, WithObserver(&n))
				end := func() error { return c.Close(t.Context()) }
				if tc.all {
					mustAcquire(t, other, "b")
					most := time.Duration(0)
					if tc.breaks {
						most = 2 * time.Second
					}
					failed := must.Go(func() error {
						_, err := c.AcquireAll(t.Context(), []string{"a", "b"}, WithMaxWait(most))
						return err
					})
					end = func() error {
						if err := <-failed; !errors.Is(err, ErrHeld) {
							return fmt.Errorf("AcquireAll: %w", err)
						}
						return nil
					}
				} else {
					mustAcquire(t, c, "a")
				}
				time.Sleep(time.Second)
				if tc.breaks {
					s.breaks("a")
				}
				must.Do(t, end())
				wantKinds(t, &n, "a", "grant", tc.want)
				for _, e := range n.of(EventLost, EventRelease) {
					if !errors.Is(e.Err, tc.err) || e.Kind == EventLost && e.Reason != ReasonUnknown {
						t.Errorf("%+v, want the error %v", e, tc.err)
					}
				}
			})
		})
	}
}

// Nobody knows how long a hand-over took whose call has left.
func TestHandOverOfACallThatHasLeftIsObservedWithoutItsDuration(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		var n notes
		s.onAnnounce = func(context.Context) error { time.Sleep(time.Second); return nil }
		l := mustAcquire(t, startClient(t, s, trust.SystemClock(), WithObserver(&n)), "report")
		hook(s, &s.endedLate)(l.claim(), protocol.Ending{Released: true,
			Handed: protocol.Handed{Slots: []int{0}}}, nil)
		synctest.Wait()
		if told := n.of(EventHandOver); len(told) != 1 || told[0].Took != 0 || told[0].Count != 1 {
			t.Errorf("%+v, want one of a call, without a duration", told)
		}
	})
}
