package queue

import (
	"maps"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// Outage is how long waiting calls bear a server that cannot be reached.
const Outage = 30 * time.Second

// Look is one look at the tables that is under way.
type Look struct {
	tickets map[int64]*Ticket // those it is to find
	Nested  []int64           // those whose owners hold locks
}

// Owners are the owners of the tickets that it is to find.
func (l *Look) Owners() (all []Owner) {
	for _, t := range l.tickets {
		all = append(all, t.Owner)
	}
	return all
}

// UntilLook is how long until the next look; pause.Never when nobody waits.
func (q *Queue) UntilLook(now trust.Instant) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.untilLook(now)
}

func (q *Queue) untilLook(now trust.Instant) time.Duration {
	if len(q.tickets) == 0 {
		return pause.Never
	}
	return max(0, q.next.Mono-now.Mono)
}

// DueLook is the look to make now, if it is due, and how long until the next otherwise.
func (q *Queue) DueLook(now trust.Instant) (*Look, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if wait := q.untilLook(now); wait > 0 {
		return nil, wait
	}
	l := &Look{tickets: maps.Clone(q.tickets), Nested: []int64{}}
	for number, t := range l.tickets {
		if t.Owner.Nested() {
			l.Nested = append(l.Nested, number)
		}
	}
	slices.Sort(l.Nested)
	q.next = now.Add(q.interval())
	return l, 0
}

// LookFailed notes that a look which was sent at that moment brought nothing. Where looks fail for long, their waits end.
func (q *Queue) LookFailed(l *Look, err error, sent, now trust.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.fails {
		q.fails, q.failing = true, sent
	}
	if now.Mono-q.failing.Mono > Outage {
		for _, t := range l.tickets {
			t.tell(News{Err: err})
		}
	}
}

// Looked gives every waiting call what a look has found of its ticket. It answers the strays: tickets that no call has, and that
// had none already at a moment since when every call that asks has had its answer.
//
// A stray would be granted to nobody in its turn, for as long as the session is alive. There is none but where the server has lost
// what it answered: a crash may lose the last moments in which requests were taken back, as these need not wait for the disk, and a
// failover to a standby that lacks them likewise.
func (q *Queue) Looked(l *Look, found map[int64]protocol.Sighting, sent, now trust.Instant, answered time.Duration) (strays []int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.took, q.fails = now.Mono-sent.Mono, false
	for number, t := range l.tickets {
		if t.number != number {
			continue // its call has another by now
		}
		s, queued := found[number]
		switch {
		case !queued:
			t.tell(News{AskAgain: true}) // granted, or passed over
		case len(s.Circle) > 0:
			t.tell(News{Circle: s.Circle})
		default:
			t.seen = sent
			if at := now.Add(s.Remaining); s.First && (!t.first || s.Remaining > AskLate || at.Mono < t.askAt.Mono-lastEager) {
				t.askAt = at
				t.signal()
			}
			t.first = s.First
		}
	}
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
	return strays
}
