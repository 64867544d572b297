package pglock

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// overslept is by how much the watch of the deadlines comes late before it counts as a pause of the program.
	overslept = 250 * time.Millisecond
	// remembered is for how long after a pause it explains the leases that have expired meanwhile.
	remembered = 2 * wallClockLook
)

// errExpired ends a lease that is past its deadline.
var errExpired = errors.New("expired")

// pulse tells from the watch of the deadlines, which wakes once a second, whether the program runs.
type pulse struct {
	last   trust.Instant // when the watch ran,
	next   time.Duration // and how long after that it was to run again
	paused error         // how the program did not run, as was noticed last; nil: it ran
	length time.Duration
	ended  trust.Instant
}

// beat notes that the watch runs, and is to run again after next.
func (p *pulse) beat(now trust.Instant, next time.Duration) {
	if length, paused := p.misses(now); paused != nil {
		p.length, p.paused, p.ended = length, paused, now
	}
	p.last, p.next = now, max(next, 0)
}

// misses says that the watch is late, so the program has not run for about so long, and how.
func (p *pulse) misses(now trust.Instant) (length time.Duration, paused error) {
	length = -now.Until(p.last)
	switch round := length.Round(100 * time.Millisecond); {
	case p.last == (trust.Instant{}) || p.next == never || length < p.next+overslept:
		return 0, nil
	case length-(now.Mono-p.last.Mono) > overslept:
		return length, fmt.Errorf("the machine was suspended, or its clock set, for about %v", round)
	default:
		return length, fmt.Errorf("the program did not run for about %v", round)
	}
}

// missed is for how long the program has not run lately, and how.
func (s *leases) missed(now trust.Instant) (length time.Duration, paused error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if length, paused = s.pulse.misses(now); paused == nil && -now.Until(s.pulse.ended) < remembered {
		length, paused = s.pulse.length, s.pulse.paused
	}
	return length, paused
}

// whyExpired says why a lease was not renewed in time: the program did not run for so long, or could not renew it, or
// the TTL is too short for the way to the server. The caller has the lease's mutex.
func (l *Lease) whyExpired(length time.Duration, paused error) error {
	switch {
	case paused != nil && length > l.ttl/3:
		return fmt.Errorf("%w, and the TTL is %v", paused, l.ttl)
	case (l.failure == nil || errors.Is(l.failure, errSilent)) && l.took > l.ttl/3:
		return fmt.Errorf("a request to the server took %v: the TTL of %v is too short for this connection", l.took, l.ttl)
	}
	return l.failure
}
