package pglock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// heldBy answers every request with somebody else's lease that lasts for so long from now on.
func heldBy(holder string, remaining time.Duration) func(context.Context, call) (protocol.Answer, error) {
	return func(context.Context, call) (protocol.Answer, error) {
		return protocol.Answer{Token: 5, Holder: holder, ExpiresAt: time.Now().Add(remaining).UTC(),
			Remaining: remaining}, nil
	}
}

func TestHintGivesTheLeaseWithoutAnotherRequest(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		time.Sleep(10 * time.Second)
		began := time.Now()
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		l := mustGet(t, result)
		if l.Token() != 6 || l.grantID != id || l.Slot() != 0 || time.Since(began) != 0 {
			t.Errorf("%v with grant ID %v after %v, want token 6 with %v at once", l, l.grantID, time.Since(began), id)
		}
		if n := len(s.of("acquire")); n != 1 {
			t.Errorf("%d requests, want one", n)
		}
		time.Sleep(time.Hour)
		if err := l.Err(); err != nil {
			t.Errorf("after an hour: %v", err)
		}
	})
}

func TestRequestThatFindsTheLockFreedMeanwhileIsRepeatedSoon(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
			if len(s.of("acquire")) < 4 {
				return protocol.Answer{}, nil // no holder, no ticket
			}
			return protocol.Answer{Granted: true, Token: 6, Remaining: DefaultTTL}, nil
		}
		l, err := startClient(t, s, trust.SystemClock()).Acquire(t.Context(), "report")
		if err != nil || l.Token() != 6 || time.Since(s.began) > 50*time.Millisecond || len(s.of("acquire")) != 4 {
			t.Errorf("%v, %v after %v and %d requests, want the lease at the fourth", l, err, time.Since(s.began),
				len(s.of("acquire")))
		}
	})
}

func TestRequestThatNeitherWaitsNorIsGrantedIsNotRepeatedWithoutPause(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) { return protocol.Answer{}, nil }
		c := startClient(t, s, trust.SystemClock())
		if _, err := c.Acquire(t.Context(), "report", WithMaxWait(time.Minute)); !errors.Is(err,
			context.DeadlineExceeded) || !errors.Is(err, ErrHeld) {
			t.Error(err)
		}
		if n := len(s.of("acquire")); n > 1300 {
			t.Errorf("%d requests in a minute", n)
		}
	})
}

func TestMaxWaitBoundsTheWaitAndNotTheLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		began := time.Now()
		_, err := c.Acquire(t.Context(), "report", WithMaxWait(3*time.Second))
		if said := "waited 3s in vain (WithMaxWait): lock"; err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%v, want %q", err, said)
		}
		if !errors.Is(err, ErrHeld) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v, want ErrHeld and context.DeadlineExceeded after 3s", err, time.Since(began))
		}

		s.set(func() { s.onAcquire = heldBy("b", time.Hour) })
		before := len(s.of("acquire"))
		_, err = c.Acquire(t.Context(), "report", WithMaxWait(0))
		asked := s.of("acquire")[before:]
		if !errors.Is(err, ErrHeld) || errors.Is(err, context.DeadlineExceeded) || len(asked) != 1 ||
			asked[0].request.Wait {
			t.Errorf("without any wait: %v after %d requests, want ErrHeld after one that does not queue", err,
				len(asked))
		}

		s.set(func() { s.onAcquire = nil })
		l := must.Get(c.Acquire(t.Context(), "report", WithMaxWait(3*time.Second)))(t)
		time.Sleep(time.Hour)
		if err := l.Err(); err != nil {
			t.Errorf("after an hour: %v", err)
		}
	})
}

func TestContextOfAcquireBoundsTheWaitAndNotTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		s := newFakeStore()
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		id, result := waiting(ctx, t, c, "report")
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		l := mustGet(t, result)
		cancel()
		time.Sleep(time.Hour)
		if l.Err() != nil || l.Context().Err() != nil || l.Context().Value(key{}) != "value" {
			t.Errorf("Err() = %v, context %v with value %v", l.Err(), l.Context().Err(), l.Context().Value(key{}))
		}
	})
}

func TestTryAcquireNeverQueues(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = heldBy("b", time.Hour)
		c := startClient(t, s, trust.SystemClock())
		if _, err := c.TryAcquire(t.Context(), "report"); !errors.Is(err, ErrHeld) {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if asked := s.of("acquire"); len(asked) != 1 || asked[0].request.Wait || len(s.of("look"))+
			len(s.of("listen")) != 0 {
			t.Errorf("%d requests, %d looks, %d listeners; want one request that does not queue", len(asked),
				len(s.of("look")), len(s.of("listen")))
		}
	})
}

func TestWaitingCallBearsAnOutageOfHalfAMinute(t *testing.T) {
	for name, tc := range map[string]struct {
		outage time.Duration
		borne  bool
	}{"shorter": {15 * time.Second, true}, "longer": {5 * time.Minute, false}} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
				if time.Since(s.began) < tc.outage {
					return protocol.Answer{}, sqlError("57P03") // the server is starting up
				}
				return protocol.Answer{Granted: true, Token: 6, Remaining: DefaultTTL}, nil
			}
			_, err := startClient(t, s, trust.SystemClock()).Acquire(t.Context(), "report")
			if (err == nil) != tc.borne {
				t.Errorf("an outage of %v: %v", tc.outage, err)
			}
			if took := time.Since(s.began); took > 45*time.Second {
				t.Errorf("returned after %v", took)
			}
		}))
	}
}

// A lock whose row another transaction has locked for long counts as held: a waiting call waits for as long as its
// context, and a try is refused.
func TestWaitingCallBearsARowThatIsLockedForLong(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			time.Sleep(time.Second) // so long the server waits
			if time.Since(s.began) < 10*time.Minute {
				return protocol.Answer{}, sqlError("55P03")
			}
			return protocol.Answer{Granted: true, Token: 6, Remaining: DefaultTTL}, nil
		}
		c := startClient(t, s, trust.SystemClock())
		if _, err := c.TryAcquire(t.Context(), "report"); !errors.Is(err, ErrHeld) ||
			time.Since(s.began) != time.Second {
			t.Errorf("a try: %v after %v, want ErrHeld: another transaction is granting it", err, time.Since(s.began))
		}
		if _, err := c.Acquire(t.Context(), "report", WithMaxWait(time.Minute)); !errors.Is(err,
			context.DeadlineExceeded) || !errors.Is(err, ErrHeld) || time.Since(s.began) != time.Minute+time.Second {
			t.Errorf("a minute: %v after %v", err, time.Since(s.began))
		}
		l, err := c.Acquire(t.Context(), "report")
		if err != nil || l.Token() != 6 || time.Since(s.began) > 10*time.Minute+2*time.Second {
			t.Errorf("%v, %v after %v", l, err, time.Since(s.began))
		}
		if n := len(s.of("acquire")); n < 500 || n > 600 {
			t.Errorf("%d requests in ten minutes", n)
		}
		if n := len(s.of("giveUp")); n != 0 {
			t.Errorf("%d requests of which nothing was done were taken back", n)
		}
	})
}

// For how long a server is away counts from the last answer, whatever that said.
func TestWaitingCallBearsOneLossLongAfterAnother(t *testing.T) {
	for name, answer := range map[string]error{"the row is locked": sqlError("55P03"),
		"the grant ID is spent": sqlError(protocol.StateSpentGrantID)} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
				switch n := len(s.of("acquire")); {
				case n == 1 || n == 61:
					return protocol.Answer{}, errReset
				case n < 61:
					time.Sleep(time.Second)
					return protocol.Answer{}, answer
				}
				return protocol.Answer{Granted: true, Token: 6, Remaining: DefaultTTL}, nil
			}
			if _, err := startClient(t, s, trust.SystemClock()).Acquire(t.Context(), "report"); err != nil {
				t.Error(err)
			}
		}))
	}
}

// The program stood still for a minute while a look was under way, which then failed. That is one failure.
func TestWaitSurvivesALookThatFailsAfterAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, s := newMovedClock(), newFakeStore()
		q := queued(s, time.Hour)
		s.onLook = func(ctx context.Context, nested []int64) (map[int64]protocol.Sighting, error) {
			if len(s.of("look")) == 1 {
				m.move(time.Minute, time.Minute)
				return nil, errReset
			}
			return q.look(ctx, nested)
		}
		c := startClient(t, s, m.now)
		id, result := waiting(t.Context(), t, c, "report")
		time.Sleep(5 * time.Second)
		still(t, result)
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		mustGet(t, result)
	})
}

// The looks find out where the requests were answered before.
func TestWaitThatCannotLookForHalfAMinuteEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		outage time.Duration
		borne  bool
	}{"shorter": {25 * time.Second, true}, "longer": {5 * time.Minute, false}} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			s.onLook = func(ctx context.Context, nested []int64) (map[int64]protocol.Sighting, error) {
				if time.Since(s.began) < tc.outage {
					return nil, errReset
				}
				return q.look(ctx, nested)
			}
			c := startClient(t, s, trust.SystemClock())
			id, a := waiting(t.Context(), t, c, "report")
			_, b := waiting(t.Context(), t, c, "other")
			time.Sleep(40 * time.Second)
			if tc.borne {
				still(t, a)
				still(t, b)
				c.queue.Hear(q.grant(id, DefaultTTL), nil)
				mustGet(t, a)
				return
			}
			for _, result := range []chan acquired{a, b} {
				var got acquired
				if got = <-result; got.lease != nil || !errors.Is(got.err, errReset) ||
					!errors.Is(got.err, ErrHeld) {
					t.Errorf("%v, %v; want the failure and ErrHeld", got.lease, got.err)
				}
				if got.at < 30*time.Second || got.at > 32*time.Second {
					t.Errorf("returned after %v, want soon after 30s", got.at)
				}
			}
		}))
	}
}
