package pglock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/trust"
)

// notes is an observer that keeps what it is told.
type notes struct {
	mu     sync.Mutex
	events []Event
	ctxs   []context.Context
}

func (n *notes) Observe(ctx context.Context, e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events, n.ctxs = append(n.events, e), append(n.ctxs, ctx)
}

// of gives the events of these kinds, in order.
func (n *notes) of(kinds ...EventKind) (some []Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.events {
		for _, kind := range kinds {
			if e.Kind == kind {
				some = append(some, e)
			}
		}
	}
	return some
}

func TestEachGrantIsObservedAndItsEndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n notes
		c := startClient(t, newFakeStore(), trust.SystemClock(), WithObserver(&n))
		l := mustAcquire(t, c, "report", WithTTL(time.Minute))
		time.Sleep(5 * time.Second)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		all := n.of(EventGrant, EventRelease, EventLost)
		if len(all) != 2 || all[0].Kind != EventGrant || all[0].Way != WayFree || all[1].Kind != EventRelease || all[1].Held != 5*time.Second {
			t.Errorf("events: %+v", all)
		}
	})
}
