package pglock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestRequestUnderALeasesContextIsTheSameOwnersAndNestedUntilTheRelease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		outer := mustAcquire(t, c, "outer")
		inner := must.Get(c.TryAcquire(outer.Context(), "inner"))(t)
		type key struct{}
		under := context.WithValue(context.WithoutCancel(inner.Context()), key{}, 1)
		must.Get(c.Acquire(under, "third"))(t)
		mustAcquire(t, c, "stranger")
		asked := s.of("acquire")
		for i, want := range []struct{ same, nested bool }{{true, false}, {true, true}, {true, true}, {false, false}} {
			same := asked[i].request.Owner == asked[0].request.Owner
			if same != want.same || asked[i].nested != want.nested {
				t.Errorf("request for %s: same owner %v, nested %v; want %+v", asked[i].names[0], same, asked[i].nested,
					want)
			}
		}
	})
}

func TestOwnerThatHoldsNothingAnyMoreIsNotNested(t *testing.T) {
	for name, end := range map[string]func(context.Context, *Lease){
		"released": func(ctx context.Context, l *Lease) { _ = l.Release(ctx); _ = l.Release(ctx) },
		"lost":     func(_ context.Context, l *Lease) { <-l.Context().Done() },
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			if name == "lost" {
				s.onRenewAll = hangs
			}
			c := startClient(t, s, trust.SystemClock())
			l := mustAcquire(t, c, "outer")
			second := must.Get(c.TryAcquire(l.Context(), "second"))(t)
			under := context.WithoutCancel(l.Context())
			end(t.Context(), l)
			if name == "released" {
				if _, err := c.TryAcquire(under, "third"); err != nil || !s.of("acquire")[2].nested {
					t.Errorf("while another lease is held: %v, nested %v", err, s.of("acquire")[2].nested)
				}
				for l := range c.leases.all {
					_ = l.Release(t.Context())
				}
			}
			<-second.Context().Done()
			must.Get(c.TryAcquire(under, "later"))(t)
			asked := s.of("acquire")
			if last := asked[len(asked)-1]; last.nested {
				t.Error("it counts as holding a lock that has ended")
			}
		}))
	}
}

// Another goroutine may ask at any moment what the owner holds: that must not end a lease that is being made.
func TestALeaseIsNotItsOwnersBeforeItHasADeadline(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		outer := mustAcquire(t, c, "outer")
		r := must.Get(c.newRequest("report", nil))(t)
		q := must.Get(c.newPending(outer.Context(), r))(t)
		l := newLease(c, t.Context(), q.request, q.GrantID, 7, 0)
		if l.owner.holds("report") || l.ended != nil {
			t.Errorf("the owner holds a lease without a deadline, or has ended it: %v", l.ended)
		}
	})
}

// A pause between the grant and the moment from which the client looks after the lease can outlast it, and then another
// goroutine of the same owner ends it.
func TestALeaseThatEndsBeforeTheClientLooksAfterItIsLost(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		r := must.Get(c.newRequest("report", nil))(t)
		q := must.Get(c.newPending(t.Context(), r))(t)
		l := newLease(c, t.Context(), q.request, q.GrantID, 7, 0)
		l.extend(c.now(), protocol.Verdict{Remaining: DefaultTTL}, 0)
		l.owner.takes(l)
		time.Sleep(2 * DefaultTTL)
		if l.owner.holds("report") {
			t.Fatal("it has not ended")
		}
		if err := c.adopt(l); !errors.Is(err, ErrLost) || len(c.leases.all) > 0 {
			t.Errorf("%v, want ErrLost; %d leases are looked after", err, len(c.leases.all))
		}
	})
}

func TestRefusedRequestLeavesItsOwnerAsItWas(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		outer := mustAcquire(t, c, "outer")
		s.set(func() { s.onAcquire = heldBy("b", time.Hour) })
		if _, err := c.TryAcquire(outer.Context(), "held"); !errors.Is(err, ErrHeld) {
			t.Error(err)
		}
		s.set(func() {
			s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
				time.Sleep(time.Minute) // an answer that comes after the TTL
				return protocol.Answer{Granted: true, Token: 9, Remaining: DefaultTTL}, nil
			}
		})
		if _, err := c.TryAcquire(outer.Context(), "late"); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		if n := len(outer.owner.held); n != 1 {
			t.Errorf("the owner holds %d leases, want one", n)
		}
	})
}

func TestOwnersOwnLockIsRefusedWithBothSentinels(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		l := mustAcquire(t, c, "report")
		s.set(func() {
			s.onAcquire = func(_ context.Context, asked call) (protocol.Answer, error) {
				if !asked.nested {
					t.Error("the request does not say that it is nested")
				}
				return protocol.Answer{}, sqlError(protocol.StateDeadlock)
			}
		})
		if _, err := c.Acquire(l.Context(), "report"); !errors.Is(err, ErrSelfDeadlock) || !errors.Is(err, ErrHeld) ||
			errors.Is(err, ErrDeadlock) {
			t.Errorf("%v, want ErrSelfDeadlock and ErrHeld", err)
		}
		if n := len(s.of("acquire")); n != 2 || len(s.of("giveUp")) != 0 {
			t.Errorf("%d requests, want no repetition and nothing to give up", n)
		}
		if err := l.Err(); err != nil {
			t.Errorf("the lease that is held: %v", err)
		}
	})
}

func TestCircleThatALookFindsEndsTheNewestWaitAndLeavesTheQueue(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		c := startClient(t, s, trust.SystemClock())
		outer := mustAcquire(t, c, "outer")
		q := queued(s, time.Hour)
		circle := []DeadlockLink{{Lock: "b", Waiter: "we", Holder: "they", Ticket: 2},
			{Lock: "outer", Waiter: "they", Holder: "we", Queued: true, Ticket: 1}}
		_, other := waiting(t.Context(), t, c, "b")
		time.Sleep(10 * time.Second)
		q.closes(2, []protocol.Link{protocol.Link(circle[0]), protocol.Link(circle[1])})
		began := time.Now()
		result := calling(outer.Context(), c, "b")
		synctest.Wait()
		looks := s.of("look")
		if last := looks[len(looks)-1]; !slices.Equal(last.tokens, []int64{2}) || last.at != began.Sub(s.began) {
			t.Errorf("the last look searches circles from %v at %v; want the nested ticket alone, as soon as it is "+
				"there", last.tokens, last.at)
		}
		if len(looks) > 1 && len(looks[len(looks)-2].tokens) != 0 {
			t.Error("a look searches circles for who holds nothing")
		}
		got := <-result
		var deadlock *DeadlockError
		if !errors.Is(got.err, ErrDeadlock) || !errors.As(got.err, &deadlock) ||
			!slices.Equal(deadlock.Circle, circle) || got.at != began.Sub(s.began) {
			t.Errorf("%v at %v; want the circle within the look", got.err, got.at)
		}
		if gone := s.of("giveUp"); len(gone) != 1 || q.queues(gone[0].grantID) {
			t.Errorf("left %+v, want the queue", gone)
		}
		if err := outer.Err(); err != nil {
			t.Errorf("what the owner holds: %v", err)
		}
		still(t, other)
	})
}

// A lease has ended here, and the server does not know or heed that yet. Its owner holds another lock, asks again, and
// waits as anybody does.
func TestOwnerWaitsForALeaseOfItsOwnThatHasEndedHere(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *fakeServer, *Client, context.Context){
		"lost, in its grace": func(t *testing.T, s *fakeServer, c *Client, under context.Context) {
			l := must.Get(c.Acquire(under, "report", WithTTL(6*time.Second), WithGrace(time.Minute)))(t)
			s.set(func() { s.onRenewAll = hangs })
			<-l.Context().Done()
			s.set(func() { s.onRenewAll = nil })
		},
		"its release has no answer": func(t *testing.T, s *fakeServer, c *Client, under context.Context) {
			l := must.Get(c.Acquire(under, "report"))(t)
			brief, cancel := context.WithTimeout(under, 10*time.Millisecond)
			defer cancel()
			if err := l.Release(brief); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		},
		"its call has left": func(t *testing.T, s *fakeServer, c *Client, under context.Context) {
			brief, cancel := context.WithTimeout(under, s.trip*3/2)
			defer cancel()
			if _, err := c.Acquire(brief, "report"); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c := s.client(t)
				under := mustAcquire(t, c, "outer", WithTTL(time.Hour)).Context()
				away := time.Now().Add(time.Second)
				s.fault = func(what string, done bool) error {
					if (what == "release" || what == "giveUp") && !done && time.Now().Before(away) {
						return errReset
					}
					return nil
				}
				end(t, s, c, under)
				if !s.holds("report") {
					t.Error("the server has ended it")
				}
				_, err := c.TryAcquire(under, "report")
				if !errors.Is(err, ErrHeld) || errors.Is(err, ErrSelfDeadlock) {
					t.Errorf("TryAcquire: %v, want that somebody holds it", err)
				}
				if _, err := c.Acquire(under, "report", WithMaxWait(lastLook/10)); !errors.Is(err, ErrHeld) ||
					errors.Is(err, ErrSelfDeadlock) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Acquire with WithMaxWait: %v, want that it has waited", err)
				}
				must.Get(c.Acquire(under, "report"))(t)
				if _, err := c.Acquire(under, "report"); !errors.Is(err, ErrSelfDeadlock) {
					t.Errorf("%v, want ErrSelfDeadlock", err)
				}
			})
		})
	}
}

// Of two requests of one owner for a lock, the first may be granted it and leave at that moment.
func TestCircleOfOneThroughALeaseThatHasEndedHereIsWaitedOut(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		c := startClient(t, s, trust.SystemClock())
		outer := mustAcquire(t, c, "outer")
		q := queued(s, time.Hour)
		link := protocol.Link{Lock: "b", Waiter: "we", Holder: "we", Ticket: 1}
		q.closes(1, []protocol.Link{link})
		result := calling(outer.Context(), c, "b")
		time.Sleep(3 * lastLook)
		still(t, result)
		link.Queued = true // behind another of its own, which waits
		q.closes(1, []protocol.Link{link})
		if got := <-result; !errors.Is(got.err, ErrDeadlock) {
			t.Errorf("%v, want the circle", got.err)
		}
	})
}
