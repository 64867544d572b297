package pglock

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// wallClockLook is how often the watch reads the wall clock, which timers do not follow.
	wallClockLook = time.Second
	// beatMost limits the leases that one statement renews: about a tenth of a second of the server's time.
	beatMost = 10_000
	// never is the plan of a loop that waits only for a wake-up.
	never = pause.Never
)

// leases holds the client's leases that have not ended, and when its loops next wake by themselves, on the
// monotonic clock. A plan stands until its time has passed, even if its lease has gone: leases that come and go
// wake nobody.
type leases struct {
	mu           sync.Mutex // taken before a lease's, after that of the lines
	closed       bool
	all          map[*Lease]struct{}
	nextBeat     time.Duration // of the heartbeat
	nextDeadline time.Duration // of the watch of the deadlines
}

func newLeases() *leases {
	return &leases{all: make(map[*Lease]struct{}), nextBeat: never, nextDeadline: never}
}

// adopt puts a new lease under the care of the client's loops. False: the client was closed meanwhile.
func (c *Client) adopt(l *Lease, way Way) bool {
	at := c.now()
	now := at.Mono
	s := c.leases
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	l.held(at, way)
	s.all[l] = struct{}{}
	look := min(l.deadline.Mono, now+wallClockLook)
	beatSooner, deadlineSooner := l.due.Mono < s.nextBeat, look < s.nextDeadline
	s.nextBeat, s.nextDeadline = min(s.nextBeat, l.due.Mono), min(s.nextDeadline, look)
	s.mu.Unlock()
	if beatSooner {
		signal(c.beatWake)
	}
	if deadlineSooner {
		signal(c.deadlineWake)
	}
	return true
}

// replace ends a released lease and puts the next turn in its place, with the rest of the grant. False: the
// lease has already ended, or has too little time left. ctx is the release's.
func (s *leases) replace(ctx context.Context, l, next *Lease, now trust.Instant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.closed || l.ended != nil || now.Until(l.deadline) < l.ttl/2 {
		return false
	}
	l.ended = ErrReleased
	l.owner.held.Add(-1)
	next.deadline, next.due, next.fresh, next.expiresAt = l.deadline, l.due, l.fresh, l.expiresAt
	l.passedTo(ctx, next, now)
	delete(s.all, l)
	s.all[next] = struct{}{}
	return true
}

func (s *leases) forget(l *Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, l)
}

// close takes no more leases, and returns the present ones.
func (s *leases) close() []*Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return slices.Collect(maps.Keys(s.all))
}

// due returns the leases to renew now, and the shortest TTL of all leases, due or not. When one is due, all of about
// its TTL are renewed with it, so that they come together whenever they were granted. Of the others, and after a
// failed renewal, it takes only those that would soon be due. If none is due, it plans the next beat, no later than
// the next look: planned is when to wake, next when a lease is due.
func (s *leases) due(now trust.Instant, look time.Duration) (due []*Lease, shortest, next, planned time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shortest, next = MaxTTL, never
	var together time.Duration
	for l := range s.all {
		dueAt, failed := l.dueAt()
		shortest = min(shortest, l.ttl)
		if left := now.Until(dueAt); left < next {
			if next, together = left, 2*l.ttl; failed {
				together = 0
			}
		}
	}
	planned = min(next, look, stillTo(now, s.nextBeat))
	s.nextBeat = planAt(now, planned)
	if next > 0 {
		return nil, shortest, next, planned
	}
	for l := range s.all {
		if dueAt, _ := l.dueAt(); l.ttl <= together || now.Until(dueAt) <= l.ttl/12 {
			due = append(due, l)
		}
	}
	if len(due) > beatMost {
		slices.SortFunc(due, func(a, b *Lease) int {
			dueA, _ := a.dueAt()
			dueB, _ := b.dueAt()
			return cmp.Compare(dueA.Mono, dueB.Mono)
		})
		due = due[:beatMost]
	}
	return due, shortest, next, planned
}

// expired returns the leases whose local deadline has come; if there are none, it plans the next look.
func (s *leases) expired(now trust.Instant) (expired []*Lease, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = never
	for l := range s.all {
		l.mu.Lock()
		left := now.Until(l.deadline)
		l.mu.Unlock()
		next = min(next, left, wallClockLook)
		if left <= 0 {
			expired = append(expired, l)
		}
	}
	next = min(next, stillTo(now, s.nextDeadline))
	s.nextDeadline = planAt(now, next)
	return expired, next
}

// stillTo is how long until a plan; never when it has passed.
func stillTo(now trust.Instant, planned time.Duration) time.Duration {
	if planned <= now.Mono {
		return never
	}
	return less(planned, now.Mono)
}

// less takes d from a plan; never stays never.
func less(plan, d time.Duration) time.Duration {
	if plan == never {
		return never
	}
	return plan - d
}

func planAt(now trust.Instant, next time.Duration) time.Duration {
	if next == never {
		return never
	}
	return now.Mono + next
}
