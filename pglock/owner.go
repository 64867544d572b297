package pglock

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"
)

// owner is who asks for locks: one line of work, which may hold several at once. The context of a lease carries it, so
// that a request made under that context is known to be the same owner's. It is how a circle of waiters is recognised.
type owner struct {
	id   uuid.UUID
	held atomic.Int64 // leases that have not ended
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

// nested reports whether the owner holds a lock while it asks for another: only then can it be part of a circle.
func (o *owner) nested() bool { return o.held.Load() > 0 }
