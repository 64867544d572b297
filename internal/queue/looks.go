package queue

import (
	"maps"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// Outage is how long waiting calls tolerate an unreachable server.
const Outage = 30 * time.Second

// Look is one look at the tables.
type Look struct {
	tickets map[int64]*Ticket // it should find these
	Nested  []int64           // those whose owners hold locks
	Alive   time.Duration     // for how long the session counts as alive after it
	Took    time.Duration     // what the last one took
	Failing time.Duration     // for how long looks have failed
	again   trust.Instant     // the next look, if this one has no answer
	next    trust.Instant     // the next look if it has one, and nothing that came meanwhile wants more looks
	rest    time.Duration     // from look to look when this one was due
}

// UntilLook is how long until the next look, below 0 if it is late; pause.Never if no call waits.
func (q *Queue) UntilLook(now trust.Instant) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.untilLook(now)
}

func (q *Queue) untilLook(now trust.Instant) time.Duration {
	if len(q.tickets) == 0 {
		return pause.Never
	}
	return q.next.Mono - now.Mono
}

// DueLook returns the look to make now if it is due, else how long until the next.
func (q *Queue) DueLook(now trust.Instant) (*Look, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if wait := q.untilLook(now); wait > 0 {
		return nil, wait
	}
	l := &Look{tickets: maps.Clone(q.tickets), Nested: []int64{}, Took: q.took}
	if q.fails {
		l.Failing = now.Mono - q.failing.Mono
	}
	q.rest = restLook
	for number, t := range l.tickets {
		q.rest = min(q.rest, q.restOf(t))
		if t.Owner.Nested() {
			l.Nested = append(l.Nested, number)
		}
	}
	slices.Sort(l.Nested)
	every := q.interval()
	if l.Alive = q.ttl; q.rest > max(q.slowest, q.ttl/4) { // far and at rest
		l.Alive += q.rest
	}
	l.again, l.next, l.rest = now.Add(min(every, q.slowest)), now.Add(every), q.rest
	q.next = l.again
	return l, 0
}

// LookFailed notes that a look has failed. When looks fail for long, their waits end. A single one never fails for so
// long: if it seems so, the program stood still meanwhile.
func (q *Queue) LookFailed(l *Look, err error, sent, now trust.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.fails {
		if q.fails, q.failing = true, sent; now.Mono-sent.Mono > Outage/2 {
			q.failing = now
		}
	}
	q.restless(q.slowest, now)
	if now.Mono-q.failing.Mono > Outage {
		for _, t := range l.tickets {
			t.tell(News{Err: err})
		}
	}
}

// Looked tells every waiting call what a look has found about its ticket. It returns the strays: tickets without a
// call. A ticket is stray only if an earlier look also found it without a call, and every call that had asked before
// that look has had its answer since.
//
// When its turn came, a stray would be granted to nobody, for as long as the session is alive. Strays exist only
// after the server has lost what it had answered: a crash may lose the last requests that were taken back, since
// these need not wait for the disk, and so may a failover to a standby that lacks them.
func (q *Queue) Looked(l *Look, found map[int64]protocol.Sighting, sent, now trust.Instant,
	answered time.Duration) (strays []int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.took, q.fails = now.Mono-sent.Mono, false
	if q.next.Mono == l.again.Mono && q.rest == l.rest && kept(found) {
		q.next = l.next
	}
	for number, t := range l.tickets {
		if other := q.tickets[number]; t.number != number || other != nil && other != t {
			continue // its call has another ticket now, or another call this one
		}
		s, queued := found[number]
		switch {
		case !queued:
			t.tell(News{AskAgain: true}) // granted, or skipped
		case len(s.Circle) > 0:
			t.tell(News{Circle: s.Circle})
		default:
			t.seen = sent
			if at := now.Add(s.Remaining); s.Ahead == 0 &&
				(!t.first || s.Remaining > AskLate || at.Mono < t.askAt.Mono-lastEager) {
				t.askAt = at
				t.signal()
			}
			if t.notice(s, now) {
				t.signal()
			}
			q.restless(q.restOf(t), now)
		}
	}
	q.settle(now)
	before := q.strays
	q.strays = make(map[int64]trust.Instant)
	for number := range found {
		if q.tickets[number] != nil || l.tickets[number] != nil {
			continue
		}
		since, again := before[number]
		if again && since.Mono < answered {
			strays = append(strays, number)
			continue
		}
		if !again {
			since = now
		}
		q.strays[number] = since
	}
	if len(strays)+len(q.strays) > 0 { // one of ours may be the next behind it
		q.restless(q.slowest, now)
	}
	return strays
}

// kept reports whether a look has made the session live as long as it should.
func kept(found map[int64]protocol.Sighting) bool {
	for _, s := range found {
		if !s.Kept {
			return false
		}
	}
	return true
}

// settle notes whether all tickets rest. When one does not any more, notifications are wanted again: until they arrive,
// looks find what was granted.
func (q *Queue) settle(now trust.Instant) {
	rested := q.rests
	q.rests = len(q.tickets) > 0
	for _, t := range q.tickets {
		q.rests = q.rests && t.rests
	}
	if rested && q.polls() {
		q.pace = firstLook
		q.next = now.Add(q.interval())
	}
}
