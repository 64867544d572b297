package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// Of a thousand processes that wait for one lock, only those near the front of its queue look every second. The others
// look less often, until they are near; and in a queue that stands still, the less often the longer it does.
func TestWaiterFarFromTheFrontLooksLessOften(t *testing.T) {
	for name, tc := range map[string]struct {
		options []Option
		asks    []AcquireOption
		every   time.Duration
		rests   time.Duration // in a queue that has stood still for long
	}{
		"default":         {nil, nil, 5 * time.Second / 2, restLook},
		"long session":    {[]Option{WithSessionTTL(time.Hour)}, nil, 5 * time.Second / 2, restLook},
		"short session":   {[]Option{WithSessionTTL(6 * time.Second)}, nil, 3 * time.Second / 2, 6 * time.Second},
		"short lease":     {nil, []AcquireOption{WithTTL(9 * time.Second)}, 9 * time.Second / 4, 3 * time.Second},
		"shorter lease":   {nil, []AcquireOption{WithTTL(time.Second)}, time.Second, time.Second},
		"shorter session": {[]Option{WithSessionTTL(time.Second)}, nil, time.Second / 3, time.Second},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			hearing(s)
			q.others("report", protocol.Far)
			c := startClient(t, s, trust.SystemClock(), tc.options...)
			id, result := waiting(t.Context(), t, c, "report", tc.asks...)
			time.Sleep(10 * time.Second) // until it hears
			looks := func(every time.Duration, moves bool) {
				t.Helper()
				before := len(s.of("look"))
				for range 30 {
					time.Sleep(2 * time.Second)
					if moves {
						q.serves()
					}
				}
				n := len(s.of("look")) - before
				if most := int(time.Minute / every); n < most || n > most*4/3+1 {
					t.Errorf("%d looks in a minute, want one in %v, or up to a quarter sooner", n, every)
				}
			}
			looks(tc.every, true)
			stood := time.Since(s.began)
			time.Sleep(100 * time.Second)
			last := stood
			for _, look := range s.of("look") {
				if look.at <= stood {
					continue
				}
				if gap := look.at - last; gap > max(tc.every, (look.at-stood)/10)+10*time.Millisecond {
					t.Errorf("no look for %v in a queue that has stood still for %v", gap, look.at-stood)
				}
				last = look.at
			}
			if gap := 100*time.Second + stood - last; gap > max(tc.every, 10*time.Second) {
				t.Errorf("no look for %v at the end", gap)
			}
			looks(tc.rests, false)
			q.others("report", 0)
			time.Sleep(tc.rests)
			looks(min(tc.every, time.Second), false)
			c.queue.Hear(q.grant(id, DefaultTTL), nil)
			mustGet(t, result)
		}))
	}
}

func TestOneTicketNearTheFrontIsEnoughToLookEverySecond(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		hearing(s)
		q.others("report", 20)
		c := startClient(t, s, trust.SystemClock())
		far, a := waiting(t.Context(), t, c, "report")
		for range 20 {
			time.Sleep(10*time.Second + 10*time.Millisecond)
			id, b := waiting(t.Context(), t, c, "other")
			for range 5 {
				before := len(s.of("look"))
				time.Sleep(time.Second + 10*time.Millisecond)
				if len(s.of("look")) == before {
					t.Error("no look within a second")
				}
			}
			c.queue.Hear(q.grant(id, DefaultTTL), nil)
			mustGet(t, b)
		}
		c.queue.Hear(q.grant(far, DefaultTTL), nil)
		mustGet(t, a)
	})
}

// An owner that is granted a lock while it waits far from the front for another may close a circle by that.
func TestOwnerThatIsGrantedALockWhileItIsFarIsLookedAfterWithinASecond(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		s.set(func() {
			s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
				if asked.names[0] == "free" {
					return protocol.Answer{Granted: true, Token: 7, Remaining: DefaultTTL}, nil
				}
				return q.acquire(ctx, asked)
			}
		})
		hearing(s)
		q.others("report", 20)
		c := startClient(t, s, trust.SystemClock())
		for range 20 {
			ctx := context.WithValue(t.Context(), ownerKey{}, must.Get(newOwner())(t))
			id, result := waiting(ctx, t, c, "report")
			time.Sleep(10*time.Second + 10*time.Millisecond)
			l := must.Get(c.TryAcquire(ctx, "free"))(t)
			at := time.Since(s.began)
			time.Sleep(time.Second + 10*time.Millisecond)
			nested := false
			for _, look := range s.of("look") {
				nested = nested || look.at >= at && len(look.tokens) > 0
			}
			if !nested {
				t.Error("no look for circles within a second")
			}
			c.queue.Hear(q.grant(id, DefaultTTL), nil)
			for _, l := range []*Lease{l, mustGet(t, result)} {
				must.Do(t, l.Release(t.Context()))
			}
		}
	})
}
