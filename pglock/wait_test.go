package pglock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// heldBy answers every request with somebody else's lease that lasts for so long from now on.
func heldBy(holder string, remaining time.Duration) func(context.Context, call) (answer, error) {
	return func(context.Context, call) (answer, error) {
		return answer{token: 5, holder: holder, expiresAt: time.Now().Add(remaining).UTC(), remaining: remaining}, nil
	}
}

func TestWaitingCallLooksAgainWhenTheHoldersLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		end := time.Now().Add(5*time.Second + 300*time.Millisecond)
		s.onAcquire = func(ctx context.Context, asked call) (answer, error) {
			if left := time.Until(end); left > 0 {
				return heldBy("b", left)(ctx, asked)
			}
			return answer{granted: true, token: 6, remaining: DefaultTTL}, nil
		}
		l, err := startClient(t, s, systemClock()).Acquire(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		if late := time.Since(end); l.Token() != 6 || late > 300*time.Millisecond {
			t.Errorf("token %d, granted %v after the holder's lease had ended", l.Token(), late)
		}
	})
}

func TestWaitingCallLooksAtAGrowingIntervalOfAboutASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.onAcquire = heldBy("b", time.Hour)
		c := startClient(t, s, systemClock())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Acquire(ctx, "report"); !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		looks := s.of("acquire")
		if len(looks) < 45 || len(looks) > 70 {
			t.Errorf("%d looks in a minute, want about one a second", len(looks))
		}
		intervals := make(map[time.Duration]bool)
		for i, look := range looks[1:] {
			gap, planned := look.at-looks[i].at, min(firstLook<<i, lastLook)
			if i > 10 {
				planned = lastLook
			}
			if gap < planned || gap > planned+planned/4+time.Millisecond {
				t.Errorf("look %d came %v after the one before, want %v and up to a quarter more", i+1, gap, planned)
			}
			intervals[gap] = true
			if look.grantID == looks[i].grantID {
				t.Error("two looks with one grant ID")
			}
		}
		if len(intervals) < 40 {
			t.Errorf("%d looks at %d different intervals: no jitter", len(looks), len(intervals))
		}
	})
}

func TestCallThatIsCancelledWhileItWaitsNamesBothReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.onAcquire = heldBy("the other", time.Hour)
		c := startClient(t, s, systemClock())
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		began := time.Now()
		l, err := c.Acquire(ctx, "report")
		var held *HeldError
		if l != nil || !errors.Is(err, context.Canceled) || !errors.Is(err, ErrHeld) || !errors.As(err, &held) {
			t.Fatalf("Acquire = %v, %v; want context.Canceled and ErrHeld", l, err)
		}
		if held.Name != "report" || held.Holder != "the other" || held.Token != 5 || held.ExpiresAt.IsZero() {
			t.Errorf("%+v does not tell who holds the lock", held)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("returned after %v, want at the cancelling", took)
		}
	})
}

func TestMaxWaitBoundsTheWaitAndNotTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.onAcquire = heldBy("b", time.Hour)
		c := startClient(t, s, systemClock())
		began := time.Now()
		_, err := c.Acquire(t.Context(), "report", WithMaxWait(3*time.Second))
		if !errors.Is(err, ErrHeld) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v, want ErrHeld and context.DeadlineExceeded after 3s", err, time.Since(began))
		}

		before := len(s.of("acquire"))
		_, err = c.Acquire(t.Context(), "report", WithMaxWait(0))
		if n := len(s.of("acquire")) - before; !errors.Is(err, ErrHeld) || n != 1 {
			t.Errorf("without any wait: %v after %d looks, want ErrHeld after one", err, n)
		}

		s.set(func() { s.onAcquire = nil })
		l, err := c.Acquire(t.Context(), "report", WithMaxWait(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := l.Err(); err != nil {
			t.Errorf("after an hour: %v", err)
		}
	})
}

func TestContextOfAcquireBoundsTheWaitAndNotTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		c := startClient(t, newFakeStore(), systemClock())
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		l, err := c.Acquire(ctx, "report")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Hour)
		if l.Err() != nil || l.Context().Err() != nil || l.Context().Value(key{}) != "value" {
			t.Errorf("Err() = %v, context %v with value %v", l.Err(), l.Context().Err(), l.Context().Value(key{}))
		}
	})
}

func TestWaitingCallBearsAnOutageOfHalfAMinute(t *testing.T) {
	for name, tc := range map[string]struct {
		outage time.Duration
		borne  bool
	}{"shorter": {15 * time.Second, true}, "longer": {5 * time.Minute, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore()
				s.onAcquire = func(ctx context.Context, asked call) (answer, error) {
					if time.Since(s.began) < tc.outage {
						return answer{}, sqlError("57P03") // the server is starting up
					}
					return answer{granted: true, token: 6, remaining: DefaultTTL}, nil
				}
				_, err := startClient(t, s, systemClock()).Acquire(t.Context(), "report")
				if (err == nil) != tc.borne {
					t.Errorf("an outage of %v: %v", tc.outage, err)
				}
				if took := time.Since(s.began); took > 45*time.Second {
					t.Errorf("returned after %v", took)
				}
			})
		})
	}
}
