package pglock

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// owner is one line of work that asks for locks and may hold several at once. A lease's context carries it, so
// that a request under that context has the same owner. Owners make it possible to find circles of waiters.
type owner struct {
	id   uuid.UUID
	mu   sync.Mutex          // taken after a lease's and the queue's
	held map[*Lease]struct{} // those that have not ended
}

// ownerKey is the key under which a context carries a *Lease, and with it the owner, or only an *owner.
type ownerKey struct{}

// LeaseFromContext returns the lease from whose Context ctx is derived; of several, the one acquired last. It
// returns false if there is none, and for the Context of Leases, which belongs to all of them.
func LeaseFromContext(ctx context.Context) (lease *Lease, found bool) {
	lease, found = ctx.Value(ownerKey{}).(*Lease)
	return lease, found
}

// ownerOf returns the owner that ctx carries, or a new one.
func ownerOf(ctx context.Context) (*owner, error) {
	switch carried := ctx.Value(ownerKey{}).(type) {
	case *Lease:
		return carried.owner, nil
	case *owner:
		return carried, nil
	}
	return newOwner()
}

func newOwner() (*owner, error) {
	id, err := newGrantID()
	return &owner{id: id, held: make(map[*Lease]struct{})}, err
}

// Nested reports whether the owner holds a lock while it asks for another: only then can it be part of a circle.
func (o *owner) Nested() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.held) > 0
}

// holds reports whether the owner has the lock by a lease that may still be trusted. The server may have one that has
// ended here: that passes.
func (o *owner) holds(name string) bool {
	o.mu.Lock()
	held := slices.Collect(maps.Keys(o.held))
	o.mu.Unlock()
	return slices.ContainsFunc(held, func(l *Lease) bool { return l.name == name && l.Valid() })
}

func (o *owner) takes(l *Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held[l] = struct{}{}
}

func (o *owner) loses(l *Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.held, l)
}
