// Package takeback holds a client's abandoned requests: the ticket of each, or the grant that it has become, has to
// go. The heartbeat takes many back with one statement. This package does no I/O and reads no clock.
package takeback

import (
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
)

const (
	// Most limits the requests that one statement takes back: some tens of milliseconds of the server's time.
	Most = 500
	// If taking back fails, as while there is no server, it is repeated, at first soon.
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
	// refusedFor is how long, at least, it is repeated after refusals. Without a server, or where
	// a standby answers, it is repeated for as long as the client lives.
	refusedFor = time.Minute
)

// Request is one request to take back.
type Request struct {
	protocol.RequestID
	Spend   bool                    // an attempt may still be under way, and the server is to refuse it
	Done    chan protocol.TakenBack // 1-buffered: receives the result
	Lost    bool                    // the answer to an attempt
	since   time.Duration           // it has been on the list
	until   time.Duration           // it is repeated after refusals until then
	refused bool                    // alone: it goes behind the others
}

// List holds what has to be taken back. It is safe for concurrent use. Times are of the monotonic clock.
type List struct {
	mu      sync.Mutex // a leaf: no other mutex is taken under it
	waiting []*Request
	flying  int           // batches that are on their way
	most    int           // in one statement; fewer after a failure
	pause   time.Duration // after a failure
	next    time.Duration
}

// New is an empty list.
func New() *List { return &List{most: Most} }

// Add puts a request on the list. Its lease lasts no longer than the TTL.
func (l *List) Add(r protocol.RequestID, spend bool, ttl, now time.Duration) *Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	back := &Request{RequestID: r, Spend: spend, Done: make(chan protocol.TakenBack, 1), since: now, until: now +
		max(ttl, refusedFor)}
	l.waiting = append(l.waiting, back)
	return back
}

// Empty reports whether there is nothing to take back, and nothing is on its way.
func (l *List) Empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) == 0 && l.flying == 0
}

// Until is how long until the next attempt, below 0 if it is late; pause.Never if there is nothing to take back.
func (l *List) Until(now time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return pause.Never
	}
	return max(l.next, l.waiting[0].since) - now
}

// Due takes what has to be taken back now, at most so many and all to be spent or none. Say how it went, with Succeeded
// or Failed.
func (l *List) Due(now time.Duration, most int) (batch []*Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 || l.next > now {
		return nil
	}
	l.flying++
	return l.take(l.waiting[0].Spend, min(most, l.most))
}

// All takes everything, all to be spent or none in each batch.
func (l *List) All() (batches [][]*Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, spend := range []bool{false, true} {
		for {
			batch := l.take(spend, Most)
			if len(batch) == 0 {
				break
			}
			batches = append(batches, batch)
		}
	}
	return batches
}

// take takes requests of one kind. What the server has refused alone comes last: each such request may cost a batch
// half of its time, and those behind it would never get their turn.
func (l *List) take(spend bool, most int) (batch []*Request) {
	for _, refused := range []bool{false, true} {
		l.waiting = slices.DeleteFunc(l.waiting, func(r *Request) bool {
			if r.Spend != spend || r.refused != refused || len(batch) == most {
				return false
			}
			batch = append(batch, r)
			return true
		})
	}
	return batch
}

// Succeeded notes that a batch was taken back.
func (l *List) Succeeded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying--
	l.most, l.pause = min(2*l.most, Most), 0
}

// Failed puts back the rest of a batch that could not be taken back, and what of it the server has refused alone. It
// gives up what the server keeps refusing.
func (l *List) Failed(rest, refused []*Request, batch int, err error, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying--
	if protocol.ConnectionLost(err) { // it may have been too much for the available time
		l.most = max(1, batch/2)
	}
	l.pause = min(max(2*l.pause, firstPause), lastPause)
	l.next = now + l.pause
	for _, r := range refused {
		r.refused = true
	}
	for _, r := range slices.Concat(rest, refused) {
		if protocol.ConnectionLost(err) || protocol.ReadOnly(err) || protocol.Transient(err) || now < r.until {
			l.waiting = append(l.waiting, r)
		}
	}
}
