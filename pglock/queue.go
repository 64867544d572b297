package pglock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// How often a client looks at its places in the queues, where it hears of grants and where it does not: every second at
// most, by the heartbeat's one statement, and from tens of milliseconds on for as long as it hears nothing.
const (
	firstLook    = 20 * time.Millisecond
	lastLook     = time.Second
	lookPatience = 5 * time.Second

	// askLate is by how much the first in a queue asks after the end of the holder's lease, so that it finds it over.
	askLate = 500 * time.Microsecond
	// Where nothing that is held keeps it waiting, it asks again soon, and then less and less often.
	firstEager = time.Millisecond
	lastEager  = 100 * time.Millisecond
)

// queue is what a client knows of its waiting calls. The client's mutex guards it.
type queue struct {
	waiters map[*waiter]struct{}
	tickets map[int64]*waiter
	early   map[int64]early         // hints that came before the answer that tells their ticket
	strays  map[int64]trust.Instant // tickets that no call has, and when a look first told of them
	hears   bool                    // the listener has proved that it hears
	next    trust.Instant           // the next look
	pace    time.Duration           // of looks while nothing is heard
	slowest time.Duration           // of looks
	third   time.Duration           // of the session's TTL
	took    time.Duration           // the last look
	failing trust.Instant           // since when looks fail
	fails   bool
}

// newQueue is empty. A session says with every look that it is alive, so it looks three times in its TTL at least.
func newQueue(sessionTTL time.Duration) queue {
	return queue{waiters: make(map[*waiter]struct{}), tickets: make(map[int64]*waiter), early: make(map[int64]early), pace: firstLook,
		slowest: min(lastLook, sessionTTL/3), third: sessionTTL / 3}
}

// waiter is one call that waits. Its fields below wake are guarded by the client's mutex.
type waiter struct {
	*asked
	wake chan struct{} // 1-buffered: there is news
	came trust.Instant // the call

	ticket int64
	seen   trust.Instant // when the last request was sent whose answer said that the ticket is still queued
	askAt  trust.Instant // for the first in the queue
	eager  time.Duration // how long it waits at least before it asks again, where nothing that is held keeps it waiting
	first  bool
	answer protocol.Answer // that told the ticket
	news   news
	left   bool // Close has left the queue for it
}

// news is what a waiting call is woken for.
type news struct {
	hint *hint // the grant itself
	ask  bool  // ask the server again
	err  error // the wait has ended
}

// hint is the grant of a ticket as the server tells it. It is dated by when that ticket was last seen in the queue, so that
// trust in it ends before the lease, however late it comes.
type hint struct {
	ticket int64
	token  Token
	first  Token // of a block; else the token
	slot   int
	left   time.Duration // of the lease, when it was told
	seen   trust.Instant // a moment before the grant, from which trust counts
}

// early is a hint that waits for its ticket to be known.
type early struct {
	text string
	sent *trust.Instant
}

// earlyMost bounds what a stranger's notifications can make a client remember.
const earlyMost = 1024

func newWaiter(q *asked) *waiter { return &waiter{asked: q, wake: make(chan struct{}, 1)} }

// digest is what only those who know the grant ID can put before the text of a hint.
func digest(text string, grantID uuid.UUID) string {
	sum := sha256.Sum256(append([]byte(text), grantID[:]...))
	return hex.EncodeToString(sum[:])
}

// parseHint reads what the server says of a grant.
func parseHint(text string) (h hint, ok bool) {
	var left int64
	fields := strings.Fields(text)
	if len(fields) != 5 || strings.Join(fields, " ") != text {
		return h, false
	}
	for i, target := range []*int64{&h.ticket, (*int64)(&h.token), nil, &left, (*int64)(&h.first)} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		switch {
		case err != nil || n < 0:
			return h, false
		case target == nil:
			h.slot = int(n)
		default:
			*target = n
		}
	}
	h.left = time.Duration(left) * time.Microsecond
	return h, h.first > 0 && h.first <= h.token && h.token-h.first < MaxTurns
}

// enqueue makes the waiter known before the first request is sent, so that the listener is there in time.
func (c *Client) enqueue(w *waiter) error {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("acquire lock %q: %w", w.name, ErrClosed)
	}
	w.came = now
	c.queue.waiters[w] = struct{}{}
	return nil
}

func (c *Client) dequeue(w *waiter) {
	c.mu.Lock()
	delete(c.queue.waiters, w)
	delete(c.queue.tickets, w.ticket)
	if len(c.queue.waiters) == 0 {
		clear(c.queue.early)
	}
	queued := w.ticket != 0
	c.mu.Unlock()
	if queued {
		c.listener.Unwant(c.channel())
	}
}

// queuedAs notes the ticket. The first waiter of a client starts its listener.
func (c *Client) queuedAs(w *waiter, a protocol.Answer, sent trust.Instant) {
	now := c.now()
	if w.ticket == 0 {
		c.listener.Want(c.channel())
	}
	c.mu.Lock()
	delete(c.queue.tickets, w.ticket)
	w.answer = a
	if ln := w.line; ln != nil {
		if ln.ticket, ln.queued = w, true; ln.agent {
			signal(ln.wake)
		}
	}
	if a.Ticket != w.ticket || w.news.hint == nil { // a hint of this ticket may have come before the answer
		w.news = news{}
	}
	w.ticket, w.seen, w.first = a.Ticket, sent, a.First
	w.askIn(now, a.Remaining+askLate)
	c.queue.tickets[w.ticket] = w
	if e, found := c.queue.early[w.ticket]; found {
		delete(c.queue.early, w.ticket)
		c.deliver(e.text, e.sent)
	}
	if !c.queue.hears {
		c.queue.pace = firstLook
	}
	next := now.Add(c.queue.interval())
	if w.owner.nested() { // a circle that this ticket closes is found now
		next = now
	}
	if len(c.queue.tickets) == 1 {
		c.queue.fails = false // what failed for earlier waits says nothing of this one
	}
	sooner := len(c.queue.tickets) == 1 || next.Mono < c.queue.next.Mono
	if sooner {
		c.queue.next = next
	}
	c.mu.Unlock()
	if sooner {
		signal(c.beatWake)
	}
}

// interval is how long until the next look, with jitter. Looks take no more than a tenth of the time, as far as the
// session stays alive: one at ten thousand locks is not cheap. The mutex is held.
func (q *queue) interval() time.Duration {
	d := q.slowest
	if !q.hears {
		d = min(q.pace, d)
		q.pace = min(2*q.pace, lastLook)
	}
	d = max(d, min(10*q.took, q.third))
	return d - rand.N(d/4+1)
}

// untilLook is how long until the next look; never when nobody waits. The mutex is held.
func (q *queue) untilLook(now trust.Instant) time.Duration {
	if len(q.tickets) == 0 {
		return never
	}
	return max(0, q.next.Mono-now.Mono)
}

// newsOf takes the news of a waiter, and how long until it should ask the server if there is none.
func (c *Client) newsOf(w *waiter) (news, time.Duration) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := w.news
	w.news = news{}
	if !w.first {
		return n, never
	}
	return n, max(0, w.askAt.Mono-now.Mono)
}

// askIn plans when the first in the queue asks again: when the lease that it waits for ends. Where that is over already, and
// only the COMMIT of its last write is waited for, it asks soon, and then less and less often. The mutex is held.
func (w *waiter) askIn(now trust.Instant, d time.Duration) {
	if w.eager = min(max(2*w.eager, firstEager), lastEager); d > askLate {
		w.eager = 0
	}
	w.askAt = now.Add(max(d, w.eager))
}

// looking is one look under way: the tickets it is to find, and those whose owners hold locks.
type looking struct {
	tickets map[int64]*waiter
	nested  []int64
}

// dueLook is the look to make now, if it is due, and how long until the next otherwise.
func (c *Client) dueLook() (*looking, time.Duration) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if next := c.queue.untilLook(now); next > 0 {
		return nil, next
	}
	c.partNested()
	l := &looking{tickets: maps.Clone(c.queue.tickets), nested: []int64{}}
	for ticket, w := range l.tickets {
		if w.owner.nested() {
			l.nested = append(l.nested, ticket)
		}
	}
	slices.Sort(l.nested)
	c.queue.next = now.Add(c.queue.interval())
	return l, 0
}

// looked gives every waiting call what the look has found of its ticket. It answers the tickets that nobody waits for.
func (c *Client) looked(l *looking, found map[int64]protocol.Sighting, sent trust.Instant, err error) (strays []int64) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.queue.took = now.Mono - sent.Mono
	} else {
		if !c.queue.fails {
			c.queue.fails, c.queue.failing = true, sent
		}
		if now.Mono-c.queue.failing.Mono > outage {
			for _, w := range l.tickets {
				w.tell(news{err: fmt.Errorf("pglock: acquire lock %q: %w", w.name, err)})
			}
		}
		return nil
	}
	c.queue.fails = false
	for ticket, w := range l.tickets {
		if w.ticket != ticket {
			continue // it has another by now
		}
		s, queued := found[ticket]
		switch {
		case !queued:
			w.tell(news{ask: true}) // granted, or passed over
		case len(s.Circle) > 0:
			w.tell(news{err: fmt.Errorf("acquire lock %q: %w", w.name, &DeadlockError{circleOf(s.Circle)})})
		default:
			w.seen = sent
			if at := now.Add(s.Remaining); s.First && (!w.first || s.Remaining > askLate || at.Mono < w.askAt.Mono-lastEager) {
				w.askAt = at
				signal(w.wake)
			}
			w.first = s.First
		}
	}
	return c.findStrays(l, found, now)
}

func circleOf(links []protocol.Link) []Link {
	circle := make([]Link, len(links))
	for i, l := range links {
		circle[i] = Link(l)
	}
	return circle
}

// tell puts news where the waiting call finds it. The mutex is held.
func (w *waiter) tell(n news) {
	if n.hint != nil || w.news.hint == nil {
		w.news = n
	}
	signal(w.wake)
}

// heard takes the hint of a grant to its waiter; sent is a local moment before the grant, nil when it is not known.
func (c *Client) heard(text string, sent *trust.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliver(text, sent)
}

// deliver is heard with the mutex held. A hint belongs to one ticket, and proves by its digest that the server has told it.
func (c *Client) deliver(text string, sent *trust.Instant) {
	proof, said, _ := strings.Cut(text, " ")
	h, ok := parseHint(said)
	if !ok {
		return
	}
	w := c.queue.tickets[h.ticket]
	if w == nil {
		if len(c.queue.waiters) > len(c.queue.tickets) {
			if len(c.queue.early) >= earlyMost {
				clear(c.queue.early) // of calls that have left
			}
			c.queue.early[h.ticket] = early{text, sent}
		}
		return // it has left, or knows already
	}
	if proof != digest(said, w.grantID) {
		return
	}
	if h.seen = w.seen; sent != nil {
		h.seen = *sent
	}
	w.tell(news{hint: &h})
}

// tell passes on what a statement granted to waiters on its way: to our own at once, to others through the server, in a
// transaction of its own, as NOTIFY must not wait for the disk. What is lost here is found by the next look.
func (c *Client) tell(ctx context.Context, name string, h protocol.Handed, sent trust.Instant) {
	for _, text := range h.Hints {
		c.heard(text, &sent)
	}
	if len(h.Slots) > 0 || h.Watched {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		announce(ctx, map[string]protocol.Handed{name: h}, c.backend.Announce)
	}
}

// announce tells the waiters of others, and those who watch, as far as ctx allows.
func announce(ctx context.Context, byName map[string]protocol.Handed, tell func(context.Context, []string, []*int) error) {
	var names []string
	var slots []*int
	for name, h := range byName {
		if len(h.Slots) == 0 {
			names, slots = append(names, name), append(slots, nil)
		}
		for _, s := range h.Slots {
			names, slots = append(names, name), append(slots, &s)
		}
	}
	if len(names) > 0 {
		_ = tell(ctx, names, slots)
	}
}

// leaveQueues takes every ticket that the client has, for Close to take back. The mutex is held.
func (q *queue) leaveQueues() (ups []*giveUp) {
	for _, w := range q.tickets {
		w.left = true
		ups = append(ups, w.giveUp())
	}
	return ups
}

func (c *Client) hasLeft(w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return w.left
}
