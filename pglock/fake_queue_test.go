package pglock

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// fakeQueue makes a fake store queue every request for locks that "the other" holds, until a test grants one.
type fakeQueue struct {
	mu      sync.Mutex
	until   time.Time // when the other's leases end; the first waiter that asks after that gets the lock
	last    int64
	tokens  int64
	tickets map[uuid.UUID]fakeTicket
	granted map[uuid.UUID]int64
	circles map[int64][]protocol.Link // what a look brings for a ticket
	foreign map[int64]bool            // tickets of other clients
	served  int64                     // the ticket that was served last
}

type fakeTicket struct {
	name   string
	number int64
}

func queued(s *fakeStore, lasting time.Duration) *fakeQueue {
	q := &fakeQueue{until: time.Now().Add(lasting), tokens: 5, tickets: make(map[uuid.UUID]fakeTicket),
		granted: make(map[uuid.UUID]int64), circles: make(map[int64][]protocol.Link), foreign: make(map[int64]bool)}
	s.set(func() { s.onAcquire, s.onLook, s.onGiveUp, s.onOwnTickets = q.acquire, q.look, q.giveUp, q.own })
	return q
}

// ahead is how many tickets of the lock are lower.
func (q *fakeQueue) ahead(t fakeTicket) (n int) {
	for _, other := range q.tickets {
		if other.name == t.name && other.number < t.number {
			n++
		}
	}
	return n
}

func (q *fakeQueue) acquire(_ context.Context, asked call) (protocol.Answer, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t, known := q.tickets[asked.grantID]
	remaining := time.Until(q.until)
	if known && remaining <= 0 && q.ahead(t) == 0 {
		q.grantLocked(asked.grantID, asked.request.TTL)
	}
	if token, granted := q.granted[asked.grantID]; granted {
		return protocol.Answer{Granted: true, Token: token, Holder: asked.request.Holder,
			Remaining: asked.request.TTL}, nil
	}
	if !known {
		q.last++
		t = fakeTicket{asked.names[0], q.last}
		q.tickets[asked.grantID] = t
	}
	return protocol.Answer{Token: 5, Holder: "the other", ExpiresAt: q.until.UTC(), Remaining: remaining,
		Ticket: t.number, Place: q.ahead(t) + 1, First: q.ahead(t) == 0}, nil
}

func (q *fakeQueue) look(context.Context, []int64) (map[int64]protocol.Sighting, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	found := make(map[int64]protocol.Sighting)
	for _, t := range q.tickets {
		if q.foreign[t.number] {
			continue
		}
		found[t.number] = protocol.Sighting{Kept: true, Ahead: min(q.ahead(t), protocol.Far),
			Remaining: max(0, time.Until(q.until)), Circle: q.circles[t.number], Served: q.served}
	}
	return found, nil
}

func (q *fakeQueue) own(tickets []int64) (all []protocol.RequestID, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, t := range q.tickets {
		if slices.Contains(tickets, t.number) {
			all = append(all, protocol.RequestID{Name: t.name, GrantID: id})
		}
	}
	return all, nil
}

// giveUp takes back the ticket or the grant, as the server does.
func (q *fakeQueue) giveUp(_ context.Context, r protocol.RequestID) (protocol.TakenBack, error) {
	grantID := r.GrantID
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, granted := q.granted[grantID]; granted {
		delete(q.granted, grantID)
		return protocol.TakenBack{Ended: true}, nil
	}
	t := q.tickets[grantID]
	l := protocol.TakenBack{Place: q.ahead(t) + 1, Token: 5, Holder: "the other", ExpiresAt: q.until.UTC()}
	delete(q.tickets, grantID)
	return l, nil
}

// grant hands the lock to the waiter, and gives the hint that tells it.
func (q *fakeQueue) grant(grantID uuid.UUID, ttl time.Duration) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.grantLocked(grantID, ttl)
}

func (q *fakeQueue) grantLocked(grantID uuid.UUID, ttl time.Duration) string {
	q.tokens++
	ticket := q.tickets[grantID].number
	q.served = max(q.served, ticket)
	delete(q.tickets, grantID)
	q.granted[grantID] = q.tokens
	q.until = time.Now().Add(ttl)
	return hintText(grantID, ticket, q.tokens, ttl)
}

// others puts so many waiters of other clients into the queue of a lock, or takes all of them out.
func (q *fakeQueue) others(name string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, t := range q.tickets {
		if n == 0 && q.foreign[t.number] {
			delete(q.tickets, id)
		}
	}
	for range n {
		q.last++
		q.tickets[uuid.New()], q.foreign[q.last] = fakeTicket{name, q.last}, true
	}
}

// ends forgets a grant that was taken over.
func (q *fakeQueue) ends(grantID uuid.UUID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.granted, grantID)
}

// lasts makes the leases of the other end after d.
func (q *fakeQueue) lasts(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Now().Add(d)
}

// closes makes looks bring the circle for the ticket.
func (q *fakeQueue) closes(ticket int64, circle []protocol.Link) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.circles[ticket] = circle
}

// holds reports whether the server has this grant as held, and queues whether it waits for it.
func (q *fakeQueue) holds(grantID uuid.UUID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, granted := q.granted[grantID]
	return granted
}

func (q *fakeQueue) queues(grantID uuid.UUID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, queued := q.tickets[grantID]
	return queued
}

// hearing makes the store's listeners hear what is notified.
func hearing(s *fakeStore) *fakeConn {
	e := &fakeConn{said: make(chan [2]string, 64)}
	s.set(func() {
		s.onListen = func(context.Context) (listener.Conn, error) { return e, nil }
		s.onNotify = func(_ context.Context, channel, payload string) error {
			e.said <- [2]string{channel, payload}
			return nil
		}
	})
	return e
}

// hears reports whether the client counts on hints.
func hears(c *Client) bool {
	return c.queue.Hears()
}

// askAgain makes every call that waits ask the server again, as after a look that did not find its ticket.
func askAgain(c *Client) {
	now := c.now()
	look, _ := c.queue.DueLook(now.Add(time.Second))
	c.queue.Looked(look, nil, now, now, 0)
}

// left is what the client still knows of its calls and leases.
func left(c *Client) (leases, tickets, takebacks int) {
	c.leases.mu.Lock()
	leases = max(len(c.leases.all), len(c.leases.byToken))
	c.leases.mu.Unlock()
	for _, batch := range c.takebacks.All() {
		takebacks += len(batch)
	}
	return leases, c.queue.Len(), takebacks
}

type acquired struct {
	lease *Lease
	err   error
	at    time.Duration // since the fake was made
}

// waiting starts a call that waits, and returns once it is queued.
func waiting(ctx context.Context, t *testing.T, c *Client, name string, opts ...AcquireOption) (grantID uuid.UUID,
	result chan acquired) {
	t.Helper()
	result = calling(ctx, c, name, opts...)
	still(t, result)
	asked := c.backend.(*fakeStore).of("acquire")
	return asked[len(asked)-1].grantID, result
}

// calling starts a call of Acquire.
func calling(ctx context.Context, c *Client, name string, opts ...AcquireOption) chan acquired {
	s, result := c.backend.(*fakeStore), make(chan acquired, 1)
	go func() {
		l, err := c.Acquire(ctx, name, opts...)
		result <- acquired{l, err, time.Since(s.began)}
	}()
	return result
}

// mustGet waits for the call's lease.
func mustGet(t *testing.T, result chan acquired) *Lease {
	t.Helper()
	got := <-result
	if got.err != nil {
		t.Fatal(got.err)
	}
	return got.lease
}

// still fails the test when the call has returned.
func still(t *testing.T, result chan acquired) {
	t.Helper()
	synctest.Wait()
	if len(result) != 0 {
		got := <-result
		t.Fatalf("a waiting call returned %v, %v", got.lease, got.err)
	}
}

// serves makes somebody else be served, who is not in the queue.
func (q *fakeQueue) serves() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.served++
}
