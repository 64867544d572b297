package pglock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// A lease that is lost while its call sits out the grace after a failover is not returned: the call says at once that
// it is lost.
func TestALeaseThatIsLostInTheGraceAfterAFailoverIsNotReturned(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		s.promoted = time.Now()
		began := time.Now()
		time.AfterFunc(30*time.Second, func() {
			s.set(func() {
				s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
					error) {
					verdicts := make(map[protocol.Claim]protocol.Verdict)
					for _, claim := range claims {
						verdicts[claim] = protocol.Verdict{Outcome: string(ReasonBroken)}
					}
					return verdicts, nil
				}
			})
		})
		l, err := c.Acquire(t.Context(), "report", WithGrace(10*time.Minute), WithTTL(30*time.Second))
		if lost, is := errors.AsType[*LostError](err); !is || lost.Reason != ReasonBroken || l != nil {
			t.Errorf("%v, %v; want that the lease was broken", l, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the call said so after %v, in a grace of ten minutes", took)
		}
	})
}
