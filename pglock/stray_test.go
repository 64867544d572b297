package pglock

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// A ticket that no call waits for, as after a failover that lost a give_up, is taken back after the second look that
// shows it; but none that a call waits for, or may still learn of.
func TestTrap9_TicketThatNobodyWaitsForIsTakenBack(t *testing.T) {
	for _, asking := range []bool{false, true} {
		name := map[bool]string{false: "nobody is asking", true: "a call is asking"}[asking]
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			c := startClient(t, s, trust.SystemClock())
			_, waits := waiting(t.Context(), t, c, "report")
			if asking {
				slow := s.onAcquire
				s.set(func() {
					s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
						time.Sleep(10 * time.Second)
						return slow(ctx, asked)
					}
				})
				calling(t.Context(), c, "other")
				synctest.Wait()
			}
			stray := uuid.New()
			q.mu.Lock()
			q.tickets[stray] = fakeTicket{"lost", 4711}
			q.mu.Unlock()
			began := time.Now()
			gone := func() bool {
				return slices.ContainsFunc(s.of("giveUp"), func(up call) bool { return up.grantID == stray })
			}
			for !gone() && time.Since(began) < time.Minute {
				time.Sleep(100 * time.Millisecond)
			}
			took, least, most := time.Since(began), time.Duration(0), 3*lastLook
			if asking {
				least, most = 9*time.Second, 10*time.Second+3*lastLook
			}
			if took < least || took > most {
				t.Errorf("taken back after %v, want %v to %v", took, least, most)
			}
			if len(waits) != 0 || len(s.of("giveUp")) != 1 {
				t.Errorf("a wait ended, or others were taken back: %v", s.of("giveUp"))
			}
		}))
	}
}

// A call whose ticket the server has lost asks again, and the server writes another one. However late the answer comes,
// that ticket is the call's, and no stray: to take it back would lose the call's place, or end its lease.
func TestTrap9_TicketOfACallThatAsksAgainIsNotTakenBack(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		id, waits := waiting(t.Context(), t, c, "report")
		s.set(func() {
			s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
				a, err := q.acquire(ctx, asked)
				time.Sleep(20 * lastLook)
				return a, err
			}
		})
		q.mu.Lock()
		delete(q.tickets, id)
		q.mu.Unlock()
		time.Sleep(30 * lastLook)
		if asked, gone := len(s.of("acquire")), len(s.of("giveUp")); asked != 2 || gone != 0 {
			t.Errorf("%d requests, and the ticket was taken back %d times; want two requests", asked, gone)
		}
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		if l := mustGet(t, waits); !l.Valid() || !q.holds(id) {
			t.Errorf("%v, granted: %v", l, q.holds(id))
		}
	})
}
