package pglock

import (
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/trust"
)

// calls are the client's current calls and goroutines. Close waits for all of them.
type calls struct {
	mu     sync.Mutex // a leaf: no other mutex is taken under it
	closed bool
	asks   sync.WaitGroup // calls that ask for a lock; they return at once when the client is closed
	ends   sync.WaitGroup // calls that end a lease
	tasks  sync.WaitGroup
	// unanswered holds the calls that do not know their ticket, and since when.
	unanswered map[*pending]trust.Instant
}

// begin counts a call that asks for a lock, until end. False: the client is closed.
func (c *calls) begin(q *pending, now trust.Instant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.asks.Add(1)
	if c.unanswered == nil {
		c.unanswered = make(map[*pending]trust.Instant)
	}
	c.unanswered[q] = now
	return true
}

// asksAgain notes that a call does not know its ticket any more: the answer may bring another one.
func (c *calls) asksAgain(q *pending, now trust.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, asks := c.unanswered[q]; !asks {
		c.unanswered[q] = now
	}
}

func (c *calls) end(q *pending) {
	c.answered(q)
	c.asks.Done()
}

// answered notes that a call knows its ticket.
func (c *calls) answered(q *pending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unanswered, q)
}

// answeredUntil is a time on the monotonic clock: all calls that asked before it know their tickets.
func (c *calls) answeredUntil() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := never
	for _, since := range c.unanswered {
		oldest = min(oldest, since.Mono)
	}
	return oldest
}

// beginEnd counts a call that ends a lease, until ends.Done. False: the client is closed, and Close will end
// the lease.
func (c *calls) beginEnd() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.ends.Add(1)
	}
	return !c.closed
}

// background runs f as a goroutine of the client, unless the client is already closed.
func (c *calls) background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.tasks.Go(f)
	}
	return !c.closed
}

// close refuses calls and goroutines from now on. True: it was already closed.
func (c *calls) close() (already bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	already, c.closed = c.closed, true
	return already
}
