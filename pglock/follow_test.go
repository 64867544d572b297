package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// A call that has its place meets a server that has become a standby, and waits for a primary.
func TestAWaitingCallKeepsItsPlaceWhileAStandbyAnswers(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		id, result := waiting(t.Context(), t, startClient(t, s, trust.SystemClock()), "report")
		time.Sleep(10 * time.Second)
		answers := hook(s, &s.onAcquire)
		s.set(func() {
			s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
				return protocol.Answer{}, sqlError("25006")
			}
		})
		q.grant(id, DefaultTTL)
		time.Sleep(5 * time.Second)
		still(t, result)
		s.set(func() { s.onAcquire = answers })
		mustGet(t, result)
		if n := len(s.of("giveUp")); n > 0 {
			t.Errorf("%d requests were taken back", n)
		}
	})
}
