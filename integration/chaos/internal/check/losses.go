//go:build unix

package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// losses checks that no lease runs out although its process runs, reaches the server, and the server answers soon.
type losses struct {
	*court
	since map[int64]history.Event // of leases: when they were given
	slow  []history.Look          // looks that took long: everybody's requests did
}

const (
	shortest   = time.Second            // shorter leases run out on a machine that is merely busy
	stillValid = 10 * time.Millisecond  // from the last look at a lease to its release
	slowAnswer = 100 * time.Millisecond // of a look
	lossSettle = 3 * time.Second        // after a fault
)

func (l *losses) look(k history.Look) {
	if k.Ended.Sub(k.Began) > slowAnswer {
		l.slow = append(slices.DeleteFunc(l.slow, func(old history.Look) bool { return old.Ended.Add(remembered) < k.Began }), k)
	}
}

func (l *losses) event(e history.Event) {
	switch e.Kind {
	case history.Has:
		l.since[e.Lease] = e
	case history.Lets:
		if e.At.Sub(e.Until) < stillValid {
			delete(l.since, e.Lease) // it was held until its release
		}
	case history.Left:
		has, known := l.since[e.Lease]
		delete(l.since, e.Lease)
		from := has.At.Add(-time.Second)
		if !known || e.Reason != "expired" || has.TTL < shortest || l.faults.Disturbed(worker(e.Who), from, e.At, lossSettle) || l.wasSlow(from, e.At) {
			return
		}
		l.blame("lost for nothing", e.At, []string{e.Name}, fmt.Sprintf("%s the lease of lock %q with token %d and a TTL of %v ran out, with no fault that explains it: %s", sayWho(e.Who), e.Name, has.Token, has.TTL, e.Error))
	}
}

func (l *losses) wasSlow(from, to history.Time) bool {
	return slices.ContainsFunc(l.slow, func(k history.Look) bool { return k.Began <= to && k.Ended >= from })
}
