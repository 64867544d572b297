package pglock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// owner is who asks for locks: one line of work, which may hold several at once. The context of a lease carries it, so
// that a request made under that context is known to be the same owner's. It is how a circle of waiters is recognised.
type owner struct {
	id   uuid.UUID
	held atomic.Int64 // leases that have not ended

	mu      sync.Mutex // guards what follows; the last to be taken
	unnamed map[*Lease]struct{}
}

// ownerKey is under what a context carries a *Lease, and with it its owner; or an *owner alone.
type ownerKey struct{}

// LeaseFromContext is the lease whose Context ctx is, or was made of; of several the one acquired last. False when there is none, and
// for the Context of Leases, which belongs to all of them.
func LeaseFromContext(ctx context.Context) (lease *Lease, found bool) {
	lease, found = ctx.Value(ownerKey{}).(*Lease)
	return lease, found
}

// ownerOf is the owner that ctx carries, or a new one.
func ownerOf(ctx context.Context) (*owner, error) {
	switch carried := ctx.Value(ownerKey{}).(type) {
	case *Lease:
		return carried.owner, nil
	case *owner:
		return carried, nil
	}
	id, err := newGrantID()
	if err != nil {
		return nil, err
	}
	return &owner{id: id}, nil
}

// has and hasNot keep the leases of which the server does not know that they are this owner's.
func (o *owner) has(l *Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unnamed == nil {
		o.unnamed = make(map[*Lease]struct{})
	}
	o.unnamed[l] = struct{}{}
}

func (o *owner) hasNot(l *Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unnamed, l)
}

func (o *owner) isUnnamed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.unnamed) > 0
}

// makeKnown tells the server who holds the locks that this owner has from a line, of whatever client, where the server knows
// the line alone: an owner who waits while it holds a lock may be part of a circle.
func (o *owner) makeKnown(ctx context.Context) error {
	o.mu.Lock()
	unknown := slices.Collect(maps.Keys(o.unnamed))
	o.mu.Unlock()
	for _, l := range unknown {
		if l.makeKnown() {
			if err := l.client.backend.Own(ctx, l.claim(), o.id); err != nil {
				return fmt.Errorf("tell who holds lock %q: %w", l.name, err)
			}
		}
		o.hasNot(l)
	}
	return nil
}

// Nested reports whether the owner holds a lock while it asks for another: only then can it be part of a circle.
func (o *owner) Nested() bool { return o.held.Load() > 0 }
