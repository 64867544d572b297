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
)

// How often a client looks at its places in the queues, where it hears of grants and where it does not: every second at
// most, by the heartbeat's one statement, and from tens of milliseconds on for as long as it hears nothing.
const (
	firstLook    = 20 * time.Millisecond
	lastLook     = time.Second
	lookPatience = 5 * time.Second

	// askLate is by how much the first in a queue asks after the end of the holder's lease, so that it finds it over.
	askLate = 500 * time.Microsecond
)

// queue is what a client knows of its waiting calls. The client's mutex guards it.
type queue struct {
	waiters map[string]*waiter // by digest of the grant ID
	tickets map[int64]*waiter
	hears   bool          // the listener has proved that it hears
	next    instant       // the next look
	pace    time.Duration // of looks while nothing is heard
	slowest time.Duration // of looks
	third   time.Duration // of the session's TTL
	took    time.Duration // the last look
	failing instant       // since when looks fail
	fails   bool
}

// newQueue is empty. A session says with every look that it is alive, so it looks three times in its TTL at least.
func newQueue(sessionTTL time.Duration) queue {
	return queue{waiters: make(map[string]*waiter), tickets: make(map[int64]*waiter), pace: firstLook,
		slowest: min(lastLook, sessionTTL/3), third: sessionTTL / 3}
}

// waiter is one call that waits. Its fields below wake are guarded by the client's mutex.
type waiter struct {
	*asked
	wake chan struct{} // 1-buffered: there is news

	digest string
	ticket int64
	seen   instant // when the last request was sent whose answer said that the ticket is still queued
	askAt  instant // for the first in the queue
	first  bool
	answer answer // that told the ticket
	news   news
	left   bool // Close has left the queue for it
}

// news is what a waiting call is woken for.
type news struct {
	hint *hint // the grant itself
	ask  bool  // ask the server again
	err  error // the wait has ended
}

// hint is a grant as the server tells it to its waiter.
type hint struct {
	first Token // of a block; 0: token is alone
	token Token
	slot  int
	left  time.Duration // of the lease, when it was told
	seen  *instant      // a moment before the grant, from which trust counts; nil: when the ticket was last seen in the queue
}

func newWaiter(q *asked) *waiter {
	return &waiter{asked: q, wake: make(chan struct{}, 1), digest: digest(q.grantID)}
}

// digest is how a hint names a grant without telling its ID. Only who knows the ID can know the digest before.
func digest(grantID uuid.UUID) string {
	sum := sha256.Sum256(grantID[:])
	return hex.EncodeToString(sum[:])
}

// enqueue makes the waiter known before the first request is sent, so that no hint can come too early.
func (c *Client) enqueue(w *waiter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("acquire lock %q: %w", w.name, ErrClosed)
	}
	c.queue.waiters[w.digest] = w
	return nil
}

func (c *Client) dequeue(w *waiter) {
	c.mu.Lock()
	delete(c.queue.waiters, w.digest)
	delete(c.queue.tickets, w.ticket)
	empty := len(c.queue.waiters) == 0
	c.mu.Unlock()
	if empty {
		signal(c.earWake)
	}
}

// rename follows a grant ID that was chosen anew.
func (c *Client) rename(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.queue.waiters, w.digest)
	w.digest = digest(w.grantID)
	c.queue.waiters[w.digest] = w
}

// queuedAs notes the ticket. The first waiter of a client starts its listener.
func (c *Client) queuedAs(w *waiter, a answer, sent instant) {
	now := c.now()
	c.mu.Lock()
	delete(c.queue.tickets, w.ticket)
	w.answer = a
	if ln := w.line; ln != nil {
		if ln.ticket, ln.queued = w, true; ln.agent {
			signal(ln.wake)
		}
	}
	w.ticket, w.seen, w.first, w.askAt = a.ticket, sent, a.first, now.add(a.remaining+askLate)
	w.news.ask = false
	c.queue.tickets[w.ticket] = w
	if !c.queue.hears {
		c.queue.pace = firstLook
	}
	next := now.add(c.queue.interval())
	if w.owner.nested() { // a circle that this ticket closes is found now
		next = now
	}
	if len(c.queue.tickets) == 1 {
		c.queue.fails = false // what failed for earlier waits says nothing of this one
	}
	sooner := len(c.queue.tickets) == 1 || next.mono < c.queue.next.mono
	if sooner {
		c.queue.next = next
	}
	c.startListener()
	c.mu.Unlock()
	if sooner {
		signal(c.beatWake)
	}
	signal(c.earWake)
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
func (q *queue) untilLook(now instant) time.Duration {
	if len(q.tickets) == 0 {
		return never
	}
	return max(0, q.next.mono-now.mono)
}

// newsOf takes the news of a waiter, and how long until it should ask the server if there is none.
func (c *Client) newsOf(w *waiter) (news, time.Duration) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := w.news
	w.news = news{}
	if n.hint != nil && n.hint.seen == nil {
		seen := w.seen
		n.hint.seen = &seen
	}
	if !w.first {
		return n, never
	}
	return n, max(0, w.askAt.mono-now.mono)
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
	c.queue.next = now.add(c.queue.interval())
	return l, 0
}

// looked gives every waiting call what the look has found of its ticket.
func (c *Client) looked(l *looking, found map[int64]sighting, sent instant, err error) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.queue.took = now.mono - sent.mono
	} else {
		if !c.queue.fails {
			c.queue.fails, c.queue.failing = true, sent
		}
		if now.mono-c.queue.failing.mono > outage {
			for _, w := range l.tickets {
				w.tell(news{err: fmt.Errorf("pglock: acquire lock %q: %w", w.name, err)})
			}
		}
		return
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
		case len(s.circle) > 0:
			w.tell(news{err: fmt.Errorf("acquire lock %q: %w", w.name, &DeadlockError{s.circle})})
		default:
			w.seen = sent
			was := w.first
			if w.first = s.first; s.first {
				if w.askAt = now.add(s.remaining); !was {
					signal(w.wake)
				}
			}
		}
	}
}

// tell puts news where the waiting call finds it. The mutex is held.
func (w *waiter) tell(n news) {
	if n.hint != nil || w.news.hint == nil {
		w.news = n
	}
	signal(w.wake)
}

// heard takes the hint of a grant to its waiter; sent is a local moment before the grant, nil when it is not known.
func (c *Client) heard(text string, sent *instant) {
	fields := strings.Fields(text)
	var first int64
	switch len(fields) {
	case 4:
	case 5:
		var err error
		if first, err = strconv.ParseInt(fields[4], 10, 64); err != nil {
			return
		}
	default:
		return
	}
	token, err1 := strconv.ParseInt(fields[1], 10, 64)
	slot, err2 := strconv.Atoi(fields[2])
	left, err3 := strconv.ParseInt(fields[3], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || len(fields) == 5 && (first < 1 || first > token || token-first >= MaxTurns) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.queue.waiters[fields[0]]
	if w == nil {
		return // it has left, or knows already
	}
	w.tell(news{hint: &hint{Token(first), Token(token), slot, time.Duration(left) * time.Microsecond, sent}})
}

// tell passes on what a statement granted to waiters on its way: to our own at once, to others through the server, in a
// transaction of its own, as NOTIFY must not wait for the disk. What is lost here is found by the next look.
func (c *Client) tell(ctx context.Context, name string, h handed, sent instant) {
	for _, text := range h.hints {
		c.heard(text, &sent)
	}
	if len(h.tokens) > 0 || h.watched {
		c.tellAll(ctx, map[string]handed{name: h})
	}
}

func (c *Client) tellAll(ctx context.Context, byName map[string]handed) {
	var names []string
	var tokens []int64
	for name, h := range byName {
		if len(h.tokens) == 0 && h.watched {
			names, tokens = append(names, name), append(tokens, 0)
		}
		for _, t := range h.tokens {
			names, tokens = append(names, name), append(tokens, t)
		}
	}
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	_ = c.store.announce(ctx, names, tokens)
}

// leaveQueues takes every ticket that the client has, for Close to give up. The mutex is held.
func (q *queue) leaveQueues() (names []string, grantIDs []uuid.UUID) {
	for _, w := range q.tickets {
		w.left = true
		names, grantIDs = append(names, w.name), append(grantIDs, w.grantID)
	}
	return names, grantIDs
}

func (c *Client) hasLeft(w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return w.left
}
