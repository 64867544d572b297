package pglock

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/internal/trust"
)

// overslept is by how much the watch of the deadlines comes late before it counts as a pause of the program.
const overslept = 250 * time.Millisecond

// errExpired ends a lease that is past its deadline.
var errExpired = errors.New("expired")

// pulse tells from the watch of the deadlines, which wakes once a second, whether the program runs.
type pulse struct {
	last trust.Instant // when the watch ran,
	next time.Duration // and how long after that it was to run again
	// lately is the last time in which the program did not run.
	lately pausing
}

// pausing is a time in which the program did not run.
type pausing struct {
	how    error // nil: there was none
	length time.Duration
	ended  trust.Instant
}

// beat notes that the watch runs, and is to run again after next. It reports whether a pause of the program has ended.
func (p *pulse) beat(now trust.Instant, next time.Duration) (paused bool) {
	late := p.late(now)
	if paused = late.how != nil; paused {
		p.lately = late
	}
	p.last, p.next = now, max(next, 0)
	return paused
}

// late is the pause that ends now: the watch should have run before.
func (p *pulse) late(now trust.Instant) pausing {
	since := -now.Until(p.last)
	length := since - p.next // at least: the pause may have begun when the watch had just run
	switch round := length.Round(100 * time.Millisecond); {
	case p.last == (trust.Instant{}) || p.next == never || length < overslept:
		return pausing{}
	case since-(now.Mono-p.last.Mono) > overslept:
		return pausing{fmt.Errorf("the machine was suspended, or its clock set, for about %v", round), length, now}
	default:
		return pausing{fmt.Errorf("the program did not run for about %v", round), length, now}
	}
}

// paused is the last pause.
func (s *leases) paused(now trust.Instant) pausing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if late := s.pulse.late(now); late.how != nil {
		return late
	}
	return s.pulse.lately
}

// whyExpired says why a lease was not renewed in time: the program did not run since the last renewal, or could not
// renew it, or the TTL is too short for the way to the server. The caller has the lease's mutex.
func (l *Lease) whyExpired(p pausing) error {
	switch paused := p.how != nil && p.length > l.ttl/3 && p.ended.Mono > l.fresh; {
	case paused && l.failure != nil:
		return fmt.Errorf("%w, and the TTL is %v; %w", p.how, l.ttl, l.failure)
	case paused:
		return fmt.Errorf("%w, and the TTL is %v", p.how, l.ttl)
	case (l.failure == nil || errors.Is(l.failure, errSilent)) && l.took > l.ttl/3:
		return fmt.Errorf("a request to the server took %v: the TTL of %v is too short for this connection", l.took,
			l.ttl)
	}
	return l.failure
}
