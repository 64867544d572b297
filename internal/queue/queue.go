// Package queue is what a client knows of its calls that wait in the queues of the server: their tickets, what it has heard of
// them, and when it is to look. It does no I/O and reads no clock.
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

// How often a client looks at its places in the queues, where it hears of grants and where it does not: every second at
// most, by the heartbeat's one statement, and from tens of milliseconds on for as long as it hears nothing.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second

	// AskLate is by how much the first in a queue asks after the end of the holder's lease, so that it finds it over.
	AskLate = 500 * time.Microsecond
	// Where nothing that is held keeps it waiting, it asks again soon, and then less and less often.
	firstEager = time.Millisecond
	lastEager  = 100 * time.Millisecond
)

// Owner is who waits.
type Owner interface {
	Nested() bool // it holds a lock: only then can it be part of a circle
}

// Ticket is one call that waits. The queue's mutex guards its fields below Wake.
type Ticket struct {
	Owner Owner
	Wake  chan struct{} // 1-buffered: there is news

	grantID uuid.UUID
	number  int64         // 0 before the first answer
	seen    trust.Instant // when the last request was sent whose answer said that the ticket is still queued
	askAt   trust.Instant // for the first in the queue
	eager   time.Duration // how long it waits at least before it asks again, where nothing that is held keeps it waiting
	first   bool
	news    News
}

// NewTicket is for a call that is about to wait.
func NewTicket(owner Owner) *Ticket { return &Ticket{Owner: owner, Wake: make(chan struct{}, 1)} }

// News is what a waiting call is woken for.
type News struct {
	Hint     *Hint           // the grant itself
	AskAgain bool            // ask the server again
	Circle   []protocol.Link // the wait would never end
	Err      error           // the wait has ended, as looks have failed for long
}

// Any reports whether there is any news.
func (n News) Any() bool { return n.Hint != nil || n.AskAgain || n.Circle != nil || n.Err != nil }

// Queue is the tickets of one client. It is safe for concurrent use.
type Queue struct {
	mu      sync.Mutex // taken after every other but an owner's; never held across I/O
	tickets map[int64]*Ticket
	early   map[int64]early         // hints that came before the answer that tells their ticket
	strays  map[int64]trust.Instant // tickets that no call has, and when a look first told of them
	hears   bool                    // hints can be counted on
	next    trust.Instant           // the next look
	pace    time.Duration           // of looks while nothing is heard
	slowest time.Duration           // of looks
	third   time.Duration           // of the session's TTL
	took    time.Duration           // the last look
	fails   bool
	failing trust.Instant // since when looks fail
}

// New is an empty queue. A session says with every look that it is alive, so it looks three times in its TTL at least.
func New(sessionTTL time.Duration) *Queue {
	return &Queue{tickets: make(map[int64]*Ticket), early: make(map[int64]early), pace: firstLook,
		slowest: min(lastLook, sessionTTL/3), third: sessionTTL / 3}
}

// Put notes the ticket that a request was answered with. True says that the next look comes sooner than was planned.
func (q *Queue) Put(t *Ticket, grantID uuid.UUID, a protocol.Answer, sent, now trust.Instant) (sooner bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.tickets, t.number)
	if a.Ticket != t.number || t.news.Hint == nil { // a hint of this ticket may have come before the answer
		t.news = News{}
	}
	t.grantID, t.number, t.seen, t.first = grantID, a.Ticket, sent, a.First
	t.askIn(now, a.Remaining+AskLate)
	q.tickets[t.number] = t
	if e, found := q.early[t.number]; found {
		delete(q.early, t.number)
		q.hear(e.text, e.sent)
	}
	if !q.hears {
		q.pace = firstLook
	}
	next := now.Add(q.interval())
	if t.Owner.Nested() { // a circle that this ticket closes is found now
		next = now
	}
	if len(q.tickets) == 1 {
		q.fails = false // what failed for earlier waits says nothing of this one
	}
	if sooner = len(q.tickets) == 1 || next.Mono < q.next.Mono; sooner {
		q.next = next
	}
	return sooner
}

// Remove forgets the ticket of a call that waits no more.
func (q *Queue) Remove(t *Ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.tickets, t.number)
}

// Len is how many tickets there are.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tickets)
}

// TakeNews takes the news of a ticket, and how long until its call should ask the server if there is none.
func (q *Queue) TakeNews(t *Ticket, now trust.Instant) (n News, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, t.news, wait = t.news, News{}, pause.Never
	if t.first {
		wait = max(0, t.askAt.Mono-now.Mono)
	}
	return n, wait
}

// askIn plans when the first in the queue asks again: when the lease that it waits for ends. Where that is over already, and
// only the COMMIT of its last write is waited for, it asks soon, and then less and less often.
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

// SetHears notes whether hints can be counted on. At either change, which it reports, the tables are to be looked at: what was told
// before is found there.
func (q *Queue) SetHears(hears bool, now trust.Instant) (changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if changed = q.hears != hears; changed {
		q.hears, q.pace, q.next = hears, firstLook, now
	}
	return changed
}

// Hears reports whether hints can be counted on.
func (q *Queue) Hears() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.hears
}

// interval is how long until the next look, with jitter. Looks take no more than a tenth of the time, as far as the
// session stays alive: one at ten thousand locks is not cheap.
func (q *Queue) interval() time.Duration {
	d := q.slowest
	if !q.hears {
		d = min(q.pace, d)
		q.pace = min(2*q.pace, lastLook)
	}
	d = max(d, min(10*q.took, q.third))
	return d - rand.N(d/4+1)
}
