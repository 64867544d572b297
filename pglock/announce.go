package pglock

import (
	"context"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// announcement is a list of what to announce, and for the observer of what this client's waiters were given, too.
type announcement struct {
	protocol.Announcement
	handed []handed
}

// handed is what one statement gave to waiting calls.
type handed struct {
	name  string
	calls int
	sent  *trust.Instant // nil if unknown
}

// hear processes the grants that a statement made to waiters: it tells our own at once, and adds the others to
// an announcement. sent is a time before the grants, nil if unknown.
func (c *Client) hear(name string, h protocol.Handed, sent *trust.Instant, others *announcement) {
	calls := len(h.Hints)
	for _, text := range h.Hints {
		c.queue.Hear(text, sent)
	}
	for _, s := range h.Slots {
		if s > 0 {
			calls++
		}
	}
	if calls == 0 && (h.Announced || len(h.Slots) > 0) { // slot 0: beside others it only makes the next one ask
		calls = 1
	}
	if c.observing != nil && calls > 0 {
		others.handed = append(others.handed, handed{name, calls, sent})
	}
	others.Add(name, h.Slots, h.Watched)
}

// send announces through the server, and tells the observer.
func (c *Client) send(ctx context.Context, a announcement, by func(context.Context, []string, []*int) error) {
	a.Send(ctx, by)
	for _, h := range a.handed {
		e := Event{Kind: EventHandOver, Lock: h.name, Count: h.calls}
		if h.sent != nil {
			e.Took = c.now().Mono - h.sent.Mono
		}
		c.observing.tell(ctx, e)
	}
}

// tell passes on the grants that a statement made to waiters. Waiters of other clients who have not heard when
// ctx ends find their grants by looking.
func (c *Client) tell(ctx context.Context, name string, h protocol.Handed, sent *trust.Instant) {
	var others announcement
	c.hear(name, h, sent, &others)
	ctx, cancel := context.WithTimeout(ctx, parting)
	defer cancel()
	c.send(ctx, others, c.backend.Announce)
}

// tellUnconfirmed tells who has got the lock of a lease that has ended, where the answer that said so was lost: the
// server knows whether anybody has.
func (c *Client) tellUnconfirmed(ctx context.Context, name string, slot int) {
	ctx, cancel := context.WithTimeout(ctx, parting)
	defer cancel()
	defer signal(c.beatWake) // the heartbeat closes the own connection later, which may be open again
	var unconfirmed announcement
	unconfirmed.Add(name, []int{slot}, false)
	c.send(ctx, unconfirmed, c.backend.AnnounceUnconfirmed)
}

// tellSoon is tell for a call that does not wait for the announcement.
func (c *Client) tellSoon(name string, h protocol.Handed, sent *trust.Instant) {
	ctx := context.WithoutCancel(c.ctx) // Close waits for it
	if len(h.Slots) == 0 && !h.Watched || !c.calls.background(func() { c.tell(ctx, name, h, sent) }) {
		c.tell(ctx, name, h, sent)
	}
}
