package pglock

import (
	"context"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// announcement is what is to be told to the waiters of other clients, and to those who watch.
type announcement struct {
	names []string
	slots []*int // nil: those who watch alone
}

// hear takes what a statement granted to waiters on its way: our own hear of it at once, others by an announcement. sent is a
// moment before the grants.
func (c *Client) hear(name string, h protocol.Handed, sent trust.Instant, others *announcement) {
	for _, text := range h.Hints {
		c.queue.Hear(text, &sent)
	}
	for _, s := range h.Slots {
		others.names, others.slots = append(others.names, name), append(others.slots, &s)
	}
	if len(h.Slots) == 0 && h.Watched {
		others.names, others.slots = append(others.names, name), append(others.slots, nil)
	}
}

// send announces through the server, in a transaction of its own, as NOTIFY must not wait for the disk. What is lost here is found
// by the next look.
func (a announcement) send(ctx context.Context, by func(context.Context, []string, []*int) error) {
	if len(a.names) > 0 {
		_ = by(ctx, a.names, a.slots)
	}
}

// tell passes on what a statement granted to waiters. Others have not heard of it when ctx ends: they find it by looking.
func (c *Client) tell(ctx context.Context, name string, h protocol.Handed, sent trust.Instant) {
	var others announcement
	c.hear(name, h, sent, &others)
	ctx, cancel := context.WithTimeout(ctx, parting)
	defer cancel()
	others.send(ctx, c.backend.Announce)
}

// tellSoon is tell for a call that does not wait for the announcement.
func (c *Client) tellSoon(name string, h protocol.Handed, sent trust.Instant) {
	ctx := context.WithoutCancel(c.ctx) // Close waits for it
	if len(h.Slots) == 0 && !h.Watched || !c.calls.background(func() { c.tell(ctx, name, h, sent) }) {
		c.tell(ctx, name, h, sent)
	}
}
