package pglock

import (
	"cmp"
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
	// beatMost limits the leases that one statement renews.
	beatMost = int(holdsUpMost / renewCost)
	// never is the plan of a loop that waits only for a wake-up.
	never = pause.Never
)

// leases holds the client's leases that have not ended, and when its loops next wake by themselves, on the
// monotonic clock. Plans are not withdrawn when a lease ends: waking once too often is cheap, so leases that come and
// go wake nobody.
type leases struct {
	mu           sync.Mutex // taken before a lease's
	closed       bool
	all          map[*Lease]struct{}
	byToken      map[Token]*Lease
	nextBeat     time.Duration // of the heartbeat
	nextDeadline time.Duration // of the watch of the deadlines
	pulse        pulse
	sign         time.Duration // when the client has given its last sign of life for all of them
	signAgain    time.Duration // when the next may be given, after one that has failed
	soon         time.Duration // when one is due because the connection was lost; never: it was not
}

func newLeases() *leases {
	return &leases{all: make(map[*Lease]struct{}), byToken: make(map[Token]*Lease), nextBeat: never,
		nextDeadline: never,
		sign:         -signEvery, soon: never}
}

// since is when the client was granted the lease with this token; zero if it has none.
func (s *leases) since(token Token) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.byToken[token]; l != nil {
		return l.since
	}
	return time.Time{}
}

// adopt puts a new lease under the care of the client's loops. It refuses one that has ended, and any once the client
// is closed.
func (c *Client) adopt(l *Lease) error {
	at := c.now()
	now := at.Mono
	c.worked.Store(true)
	s := c.leases
	s.mu.Lock()
	l.mu.Lock()
	if err := l.ended; err != nil || s.closed {
		l.mu.Unlock()
		s.mu.Unlock()
		return cmp.Or(err, ErrClosed)
	}
	l.held(at)
	s.all[l], s.byToken[l.token] = struct{}{}, l
	look := min(l.deadline.Mono, now+wallClockLook)
	beat := min(l.due.Mono, max(l.fresh, s.sign)+signEvery)
	l.mu.Unlock()
	beatSooner, deadlineSooner := beat < s.nextBeat, look < s.nextDeadline
	s.nextBeat, s.nextDeadline = min(s.nextBeat, beat), min(s.nextDeadline, look)
	if deadlineSooner { // the watch is to run
		s.pulse.beat(at, less(look, now))
	}
	s.mu.Unlock()
	if c.queue.Held(at) || beatSooner {
		signal(c.beatWake)
	}
	if deadlineSooner {
		signal(c.deadlineWake)
	}
	return nil
}

func (s *leases) forget(l *Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.all, l); s.byToken[l.token] == l {
		delete(s.byToken, l.token)
	}
}

// close takes no more leases, and returns the present ones.
func (s *leases) close() []*Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return slices.Collect(maps.Keys(s.all))
}

// plan adds the leases to the agenda, except those of kinds without room, and plans the heartbeat's next waking: when
// some work is due or, while it waits for a statement, when some work can wait for that no longer.
func (s *leases) plan(now trust.Instant, a agenda, h *heart, waits bool) (_ agenda, wake time.Duration) {
	var room [classes]bool
	for class := range room {
		room[class] = h.hasRoom(now, class)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sign := never
	for l := range s.all {
		a.hold = min(a.hold, l.ttl/holdsUp)
		at := l.stands(now)
		sign = min(sign, at.sign)
		if room[l.class] {
			a.add(l.class, at.due, at.end)
		}
	}
	if sign != never {
		sign = max(sign, s.sign+signEvery-now.Mono)
	}
	if waits || len(s.all) > 0 {
		sign = min(sign, less(s.soon, now.Mono))
	}
	if sign != never && h.hasRoom(now, signing) {
		sign = max(sign, s.signAgain-now.Mono)
		a.add(signing, sign, max(sign, 0)+signWithin)
	}
	if wake = a.next; h.last != nil {
		wake = max(a.beside, h.last.began+a.hold-now.Mono)
	}
	wake = min(wake, stillTo(now, s.nextBeat))
	for _, f := range h.underWay { // its kind may have room then
		wake = min(wake, stillTo(now, f.until))
	}
	s.nextBeat = planAt(now, wake)
	return a, wake
}

// piece is leases of one class that one statement renews.
type piece struct {
	leases []*Lease
	limit  time.Duration // the statement should be answered within it
	until  trust.Instant // if it is not, the leases may be asked for again then
}

// take takes leases of a class for one statement, at most so many. When one is due, all of the class are renewed with
// it if the statement has room for them, so that they come together whenever they were granted. Otherwise, and after a
// failed renewal, it takes only those that are due, the earliest end first, and those that would soon be.
func (s *leases) take(now trust.Instant, class, most int) (p piece) {
	type candidate struct {
		standing
		l *Lease
	}
	var all []candidate
	var first candidate
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.all {
		if l.class != class {
			continue
		}
		c := candidate{l.stands(now), l}
		if c.asked {
			continue
		}
		if all = append(all, c); c.due <= 0 && (first.l == nil || c.end < first.end) {
			first = c
		}
	}
	if first.l == nil {
		return p
	}
	if first.urgent || len(all) > most {
		all = slices.DeleteFunc(all, func(c candidate) bool { return c.due > c.l.ttl/12 })
	}
	if len(all) > most {
		slices.SortFunc(all, func(a, b candidate) int {
			if a.due <= 0 && b.due <= 0 {
				return cmp.Compare(a.end, b.end)
			}
			return cmp.Compare(a.due, b.due)
		})
		all = all[:most]
	}
	p.limit = limitOf(first.end, first.l.ttl)
	p.until = now.Add(p.limit * 9 / 8)
	for _, c := range all {
		c.l.asks(p.until)
		p.leases = append(p.leases, c.l)
	}
	return p
}

// expired returns the leases whose local deadline has come; if there are none, it plans the next look. It reports
// whether a pause of the program has ended: a machine that was suspended renews its leases late, because timers stood
// still.
func (s *leases) expired(now trust.Instant) (expired []*Lease, next time.Duration, paused bool) {
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
	return expired, next, s.pulse.beat(now, next)
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
