package pglock

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/trust"
)

// Each look that is given up costs a connection of a server, or a pooler, that hangs. Until the session may count as
// dead another is worth it. From then on one look at a time waits for the answer, and has it at once when it comes.
func TestASilentServerIsLookedAtWithoutHaste(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		queued(s, time.Hour)
		answer := make(chan struct{})
		s.onLook = func(ctx context.Context, _ []int64) (map[int64]protocol.Sighting, error) {
			select {
			case <-answer:
				return map[int64]protocol.Sighting{}, nil // granted meanwhile
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		c := startClient(t, s, trust.SystemClock())
		_, result := waiting(t.Context(), t, c, "report")
		within, later := 0, 0
		time.Sleep(queue.Outage - time.Second)
		for _, look := range s.of("look") {
			if look.at <= DefaultSessionTTL+time.Second {
				within++
			} else {
				later++
			}
		}
		if within < 5 || later == 0 || later > 2 {
			t.Errorf("%d looks while the session may be alive, and %d later", within, later)
		}
		still(t, result)
		asked := len(s.of("acquire"))
		close(answer)
		synctest.Wait()
		if len(s.of("acquire")) == asked {
			t.Error("nobody asks for the lock when the server answers again")
		}
	})
}

// However long a server is silent, few statements are under way, and each lease is in one of them.
func TestASilentServerIsNotFlooded(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		queued(s, time.Hour)
		var asked []string
		statements, most, looks, mostLooks := 0, 0, 0, 0
		s.onRenewAll = func(ctx context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			if claims[0].Name == "answered" {
				return s.renewed(claims), nil
			}
			s.set(func() {
				for _, name := range namesOf(claims) {
					if slices.Contains(asked, name) {
						t.Errorf("%s is asked for twice at a time", name)
					}
					asked = append(asked, name)
				}
				statements++
				most = max(most, statements)
			})
			<-ctx.Done()
			s.set(func() {
				asked = slices.DeleteFunc(asked, func(name string) bool {
					return slices.Contains(namesOf(claims), name)
				})
				statements--
			})
			return nil, ctx.Err()
		}
		s.onLook = func(ctx context.Context, _ []int64) (map[int64]protocol.Sighting, error) {
			s.set(func() { looks++; mostLooks = max(mostLooks, looks) })
			<-ctx.Done()
			s.set(func() { looks-- })
			return nil, ctx.Err()
		}
		c := startClient(t, s, trust.SystemClock())
		waiting(t.Context(), t, c, "queued")
		s.set(func() { s.onAcquire = nil })
		mustAcquire(t, c, "answered", WithTTL(MinTTL)) // so the others go in many statements
		var last *Lease
		leases := 1000
		if !pgtest.EveryTest {
			leases = 600 // as many as go in four statements
		}
		for i := range leases {
			last = mustAcquire(t, c, fmt.Sprint("silent ", i), WithTTL(30*time.Second))
		}
		<-last.Context().Done()
		s.set(func() {
			if most < 2 || most > 3 || mostLooks < 2 || mostLooks > 3 { // one more where one is just given up
				t.Errorf("%d renewals and %d looks under way at a time, want 2 and 2", most, mostLooks)
			}
		})
	})
}
