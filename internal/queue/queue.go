// Package queue knows a client's calls that wait in the server's queues: their tickets, their news, and when the
// client has to look. It does no I/O and reads no clock.
package queue

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// How often a client looks at its tickets. With notifications: once a second, or, while all of them are far from the
// front of their queues, every two and a half. Without: from tens of milliseconds on, growing to a second. While all of
// them rest, notifications are not wanted, and those that are far look the less often the longer their queue has stood
// still: they find movement late by at most a tenth of that time (1/restPart).
const (
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second
	farLook   = 2500 * time.Millisecond
	restLook  = 10 * time.Second
	restPart  = 10

	// restAfter is for how long looks have found at least restAhead live tickets before a ticket, and nobody served,
	// before it rests. A lease that lasts for less than restTTL could end before the next look finds it.
	restAfter = 5 * time.Second
	restAhead = 2
	restTTL   = 4 * lastLook

	// AskLate is how long after the end of the holder's lease the first in a queue asks, so that it finds the lease
	// over.
	AskLate = 500 * time.Microsecond
	// If no lease keeps it waiting, it asks again soon, and then less and less often.
	firstEager = time.Millisecond
	lastEager  = 100 * time.Millisecond
)

// Owner is the owner of a waiting call.
type Owner interface {
	Nested() bool // it holds a lock: otherwise it cannot be part of a circle
}

// Ticket is one waiting call. The queue's mutex guards its fields below Wake.
type Ticket struct {
	Owner Owner
	Wake  chan struct{} // 1-buffered: there is news
	ttl   time.Duration // of the lease that it asks for
	alone bool          // it asks for the exclusive lock: nobody is served together with it

	grantID uuid.UUID
	number  int64         // 0 before the first answer
	seen    trust.Instant // when the last request was sent whose answer showed the ticket in the queue
	askAt   trust.Instant // for the first in the queue
	eager   time.Duration // how long it waits before it asks again if no lease keeps it waiting
	first   bool
	far     bool          // as the last look has found
	served  int64         // the ticket that was served last, as the last look has found
	since   trust.Instant // since when looks have found that it may rest, and this ticket served last
	still   time.Duration // for how long it had been so at the last look
	rests   bool
	news    News
}

// NewTicket makes the ticket of a call that is about to wait for a lease of this TTL.
func NewTicket(owner Owner, ttl time.Duration, exclusive bool) *Ticket {
	return &Ticket{Owner: owner, Wake: make(chan struct{}, 1), ttl: ttl, alone: exclusive}
}

// notice notes what a look has found, and reports whether the ticket has begun or ended to rest.
//
// A ticket that rests needs no notification. It waits behind others in a queue that stands still. So its turn does not
// come before they have been served, have left or have died, which the next look finds. Shared locks and those with a
// limit may be granted to a whole crowd at once, so their tickets never rest; nor do those of an owner that holds a
// lock, for circles.
func (t *Ticket) notice(s protocol.Sighting, now trust.Instant) (changed bool) {
	rested := t.rests
	t.first, t.far = s.Ahead == 0, s.Ahead >= protocol.Far
	if s.Ahead < restAhead || !t.alone || t.ttl < restTTL || t.Owner.Nested() || s.Served != t.served {
		t.since = now
	}
	t.served, t.still = s.Served, now.Mono-t.since.Mono
	t.rests = t.still >= restAfter
	return t.rests != rested
}

// News is why a waiting call wakes up.
type News struct {
	Hint     *Hint           // the grant itself
	AskAgain bool            // ask the server again,
	Heard    bool            // because a notification says so
	Circle   []protocol.Link // the wait would never end
	Err      error           // the wait has ended, because looks have failed for long
}

// Any reports whether there is any news.
func (n News) Any() bool { return n.Hint != nil || n.AskAgain || n.Circle != nil || n.Err != nil }

// Queue holds the tickets of one client. It is safe for concurrent use.
type Queue struct {
	mu      sync.Mutex // taken after all others except an owner's; never held across I/O
	tickets map[int64]*Ticket
	early   map[int64]early         // hints that came before the answer with their ticket
	strays  map[int64]trust.Instant // tickets without a call, and when a look first showed them
	hears   bool                    // notifications arrive
	rests   bool                    // every ticket rests, so nobody needs notifications
	next    trust.Instant           // the next look
	pace    time.Duration           // of looks while no notifications arrive
	rest    time.Duration           // from look to look while they do
	slowest time.Duration           // of looks while a ticket is near or nested
	ttl     time.Duration           // of the session
	took    time.Duration           // the last look
	fails   bool
	failing trust.Instant // since when looks fail
}

// New makes an empty queue. A look keeps the session alive, so there are at least three looks in its TTL, or it keeps
// it alive for longer.
func New(sessionTTL time.Duration) *Queue {
	return &Queue{tickets: make(map[int64]*Ticket), early: make(map[int64]early), pace: firstLook,
		slowest: min(lastLook, sessionTTL/3), ttl: sessionTTL}
}

// Put notes a request's ticket. True: the next look comes sooner than planned.
func (q *Queue) Put(t *Ticket, grantID uuid.UUID, a protocol.Answer, sent, now trust.Instant) (sooner bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(t)
	if a.Ticket != t.number || t.news.Hint == nil { // a hint of this ticket may have come before the answer
		again := t.news.AskAgain && a.Ticket == t.number // or the answer may be older than the news
		t.news = News{AskAgain: again, Heard: again && t.news.Heard}
	}
	t.grantID, t.number, t.seen, t.first, t.far, t.still = grantID, a.Ticket, sent, a.First, false, 0
	t.rests, t.since, q.rests = false, now, false
	t.askIn(now, a.Remaining+AskLate)
	if other := q.tickets[t.number]; other != nil {
		other.tell(News{AskAgain: true}) // it has lost its ticket, and the server has drawn the number again
	}
	if q.tickets[t.number] = t; len(q.tickets) == 1 {
		q.rest = restLook
	}
	q.rest = min(q.rest, q.restOf(t))
	if e, found := q.early[t.number]; found {
		delete(q.early, t.number)
		q.hear(e.text, e.sent)
	}
	if !q.hears {
		q.pace = firstLook
	}
	next := now.Add(q.interval())
	if t.Owner.Nested() { // so that a circle which this ticket closes is found now
		next = now
	}
	if len(q.tickets) == 1 {
		q.fails = false // failures of earlier waits do not concern this one
	}
	if sooner = len(q.tickets) == 1 || t.Owner.Nested() || next.Mono < q.next.Mono; sooner {
		q.next = next
	}
	return sooner
}

// Remove forgets the ticket of a call that no longer waits.
func (q *Queue) Remove(t *Ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(t)
}

// remove forgets a ticket, but not another call's of the same number: a server that has crashed, or a standby that was
// promoted, draws the numbers of lost tickets again. The mutex is held.
func (q *Queue) remove(t *Ticket) {
	if q.tickets[t.number] == t {
		delete(q.tickets, t.number)
	}
}

// Len is the number of tickets.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tickets)
}

// TakeNews takes the news of a ticket. If there is none, wait is how long until the call should ask the server.
func (q *Queue) TakeNews(t *Ticket, now trust.Instant) (n News, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, t.news, wait = t.news, News{}, pause.Never
	if t.first {
		wait = max(0, t.askAt.Mono-now.Mono)
	}
	return n, wait
}

// Rests reports whether a ticket needs no notifications now.
func (q *Queue) Rests(t *Ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return t.rests
}

// askIn plans when the first in the queue asks again: when the lease that it waits for ends. If that is already over,
// and only the COMMIT of its last write is under way, it asks soon, and then less and less often.
func (t *Ticket) askIn(now trust.Instant, d time.Duration) {
	if t.eager = min(max(2*t.eager, firstEager), lastEager); d > AskLate {
		t.eager = 0
	}
	t.askAt = now.Add(max(d, t.eager))
}

// tell puts news where the waiting call finds it.
func (t *Ticket) tell(n News) {
	if n.Hint != nil || t.news.Hint == nil {
		t.news = n
	}
	t.signal()
}

func (t *Ticket) signal() {
	select {
	case t.Wake <- struct{}{}:
	default:
	}
}

// SetHears notes whether notifications arrive, and reports whether that has changed. After a change the client has to
// look at the tables: earlier grants are found there. It need not while all tickets rest: nobody wants notifications.
func (q *Queue) SetHears(hears bool, now trust.Instant) (changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if changed = q.hears != hears; changed {
		if q.hears = hears; !q.rests {
			q.pace, q.next = firstLook, now
		}
	}
	return changed
}

// Hears reports whether notifications arrive.
func (q *Queue) Hears() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.hears
}

// restOf is how long a ticket lets the client go from look to look while notifications arrive. A ticket near the front
// may become the first when those before it die, and one of an owner that holds a lock may be part of a circle. All
// others only need their session alive, even if a look hangs; and a grant is trusted from the last look on. So there
// are four looks in the TTL of either. While one rests there may be three in its lease's, and one in the session's:
// each then keeps the session alive until a TTL after the next.
func (q *Queue) restOf(t *Ticket) time.Duration {
	if !t.far || t.Owner.Nested() {
		return q.slowest
	}
	d := min(farLook, q.ttl/4, t.ttl/4)
	if t.rests {
		d = max(d, min(t.still/restPart, restLook, q.ttl, t.ttl/3))
	}
	return max(q.slowest, d)
}

// Held notes that an owner holds a lock from now on: it may be that of a ticket. True: the next look comes sooner than
// planned.
func (q *Queue) Held(now trust.Instant) (sooner bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tickets) > 0 && q.restless(q.slowest, now)
}

// polls reports whether looks alone find grants.
func (q *Queue) polls() bool { return !q.hears && !q.rests }

// restless lets no more time pass from look to look than d.
func (q *Queue) restless(d time.Duration, now trust.Instant) (sooner bool) {
	if q.rest <= d {
		return false
	}
	if q.rest = d; q.polls() {
		return false
	}
	next := now.Add(q.interval())
	if sooner = next.Mono < q.next.Mono; sooner {
		q.next = next
	}
	return sooner
}

// interval is how long until the next look, with jitter. Looks take at most a tenth of the time, unless the session
// needs more of them: a look at ten thousand locks is not cheap.
func (q *Queue) interval() time.Duration {
	d := q.rest
	if q.polls() {
		d = min(q.pace, q.slowest)
		q.pace = min(2*q.pace, lastLook)
	}
	d = max(d, min(10*q.took, q.ttl/3))
	return d - rand.N(d/4+1)
}
