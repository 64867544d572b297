package pglock

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"
)

// owner is who asks for locks: one line of work, which may hold several at once. The context of a lease carries it, so
// that a request made under that context is known to be the same owner's. It is how a circle of waiters is recognised.
type owner struct {
	id    uuid.UUID
	held  atomic.Int64 // leases that have not ended
	turns atomic.Int64 // leases that it was given in a line, ended or not
}

type ownerKey struct{}

// ownerOf is the owner that ctx carries, or a new one.
func ownerOf(ctx context.Context) (*owner, error) {
	if o, found := ctx.Value(ownerKey{}).(*owner); found {
		return o, nil
	}
	id, err := newGrantID()
	if err != nil {
		return nil, err
	}
	return &owner{id: id}, nil
}

// makeKnown tells the server who holds the locks that this owner has from a line, where the server knows the line alone: an
// owner who waits while it holds a lock may be part of a circle.
func (c *Client) makeKnown(ctx context.Context, o *owner) error {
	if o.turns.Load() == 0 {
		return nil
	}
	var unknown []*Lease
	c.mu.Lock()
	for l := range c.leases {
		if l.owner == o && l.nameless && !l.owned.Load() {
			unknown = append(unknown, l)
		}
	}
	c.mu.Unlock()
	for _, l := range unknown {
		if !l.makeKnown() {
			continue
		}
		if err := c.store.own(ctx, l.claim(), o.id); err != nil {
			return fmt.Errorf("tell who holds lock %q: %w", l.name, err)
		}
		l.owned.Store(true)
	}
	return nil
}

// nested reports whether the owner holds a lock while it asks for another: only then can it be part of a circle.
func (o *owner) nested() bool { return o.held.Load() > 0 }
