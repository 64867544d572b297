package pglock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// rested is when a ticket has rested for so long that its client no longer listens: five seconds, a look, and half a
// minute.
const rested = 45 * time.Second

// Each notification wakes everybody who listens. So of a thousand processes that wait behind a leader only the first
// two listen.
func TestWaiterBehindTwoOthersInAQueueThatStandsStillDoesNotListen(t *testing.T) {
	nested := must.Get(newOwner())(t)
	nested.takes(&Lease{})
	for name, tc := range map[string]struct {
		before int // waiters of others
		asks   []AcquireOption
		owner  *owner
		moves  bool // somebody is served every two seconds
		rests  bool
	}{
		"the third":                  {before: 2, rests: true},
		"the second":                 {before: 1},
		"far":                        {before: 200, rests: true},
		"in a queue that moves":      {before: 200, moves: true},
		"of an owner that has locks": {before: 2, owner: nested},
		"for a short lease":          {before: 2, asks: []AcquireOption{WithTTL(4*time.Second - 1)}},
		"shared":                     {before: 2, asks: []AcquireOption{WithShared()}},
		"with a limit":               {before: 2, asks: []AcquireOption{WithLimit(3)}},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			e := hearing(s)
			q.others("report", tc.before)
			c := startClient(t, s, trust.SystemClock())
			ctx := t.Context()
			if tc.owner != nil {
				ctx = context.WithValue(ctx, ownerKey{}, tc.owner)
			}
			id, result := waiting(ctx, t, c, "report", tc.asks...)
			for range rested / (2 * time.Second) {
				time.Sleep(2 * time.Second)
				if tc.moves {
					q.serves()
				}
			}
			if hears(c) == tc.rests || e.isClosed() != tc.rests {
				t.Errorf("hears: %v, gave its connection back: %v; want rest: %v", hears(c), e.isClosed(), tc.rests)
			}
			if n := len(s.of("listen")); n != 1 {
				t.Errorf("%d connections, want one", n)
			}
			c.queue.Hear(q.grant(id, DefaultTTL), nil)
			mustGet(t, result)
		}))
	}
}

// A waiter that rests looks on, and finds out that it does not rest any more, or that it was granted the lock.
func TestI8_WaiterThatRestsFindsByALookWhatItDoesNotHear(t *testing.T) {
	for name, change := range map[string]func(q *fakeQueue){
		"those before it have left": func(q *fakeQueue) { q.others("report", 0) },
		"somebody was served":       (*fakeQueue).serves,
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			e := hearing(s)
			q.others("report", 20)
			c := startClient(t, s, trust.SystemClock())
			id, result := waiting(t.Context(), t, c, "report")
			time.Sleep(rested)
			before, stood := len(s.of("look")), time.Now()
			time.Sleep(time.Minute)
			if n := len(s.of("look")) - before; n < 7 || n > 20 || hears(c) {
				t.Errorf("%d looks in a minute, hears: %v; want a tenth more each time", n, hears(c))
			}
			change(q)
			time.Sleep((time.Since(stood) + rested) / 10)
			synctest.Wait()
			if !hears(c) || len(s.of("listen")) != 2 {
				t.Fatalf("hears: %v on %d connections; want to hear after a look", hears(c), len(s.of("listen")))
			}
			e.said <- [2]string{c.channel(), q.grant(id, DefaultTTL)}
			granted := time.Now()
			if mustGet(t, result); time.Since(granted) != 0 {
				t.Errorf("granted %v after the notification", time.Since(granted))
			}
		}))
	}
	t.Run("it was granted the lock out of turn", fakeClock(func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		hearing(s)
		q.others("report", 20)
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		time.Sleep(rested)
		q.grant(id, DefaultTTL)
		granted := time.Now()
		if mustGet(t, result); time.Since(granted) > rested/10 {
			t.Errorf("found after %v, want by the next look", time.Since(granted))
		}
	}))
}

// From the look on that has found the queue moving, a grant is found within a second, whenever it comes: while the
// client does not listen yet, while its connection is made, before and after the notification that proves that it
// hears, and also if LISTEN fails.
func TestI8_TheWayFromFarToNearMissesNoGrant(t *testing.T) {
	for name, connect := range map[string]func() error{
		"at once": func() error { return nil },
		"slowly":  func() error { time.Sleep(700 * time.Millisecond); return nil },
		"never":   func() error { return listener.ErrDeaf },
	} {
		for n := range 120 {
			served, after := n%2 == 0, time.Duration(n/2)*50*time.Millisecond
			t.Run(fmt.Sprint(name, " ", after, " ", served), fakeClock(func(t *testing.T, s *fakeStore) {
				q := queued(s, time.Hour)
				e := hearing(s)
				q.others("report", 20)
				c := startClient(t, s, trust.SystemClock())
				id, result := waiting(t.Context(), t, c, "report")
				time.Sleep(rested)
				s.set(func() {
					s.onListen = func(context.Context) (listener.Conn, error) { return e, connect() }
					s.onNotify = func(_ context.Context, channel, payload string) error { // that takes its time
						time.AfterFunc(170*time.Millisecond, func() { e.said <- [2]string{channel, payload} })
						return nil
					}
				})
				looked := make(chan time.Time, 1)
				s.set(func() {
					s.onLook = func(ctx context.Context, nested []int64) (map[int64]protocol.Sighting, error) {
						found, err := q.look(ctx, nested)
						for _, f := range found {
							if (f.Ahead < protocol.Far || f.Served > 0) && len(looked) == 0 {
								looked <- time.Now()
							}
						}
						return found, err
					}
				})
				if served { // and those before it have not left
					q.serves()
				} else {
					q.others("report", 0)
				}
				<-looked
				time.Sleep(after)
				hint, granted, heard := q.grant(id, DefaultTTL), time.Now(), hears(c)
				if heard { // the server tells whoever listens
					e.said <- [2]string{c.channel(), hint}
				}
				mustGet(t, result)
				if late := time.Since(granted); late > lastLook || heard && late > 0 {
					t.Errorf("found %v after the grant, heard: %v", late, heard)
				}
			}))
		}
	}
}
