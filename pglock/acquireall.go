package pglock

import (
	"context"
	"fmt"
	"slices"
)

// AcquireAll takes several locks: all of them or none. It waits in their queues, one after another in byte order of the
// names, whatever order they are given in; so calls of AcquireAll never wait for each other in a circle. All leases have
// the same owner (Lease.Context), each has a token of its own; they come in the order of names. The options count for each,
// WithMaxWait for all together.
//
// Errors are those of Acquire, and ErrInvalid for an empty list or a name that is there twice. After an error nothing is
// held.
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...AcquireOption) ([]*Lease, error) {
	if err := checkNames(names); err != nil {
		return nil, err
	}
	first, err := c.newRequest(names[0], opts)
	if err != nil {
		return nil, err
	}
	if first.owner, err = ownerOf(ctx); err != nil {
		return nil, err
	}
	first.apart = true
	parent := context.WithoutCancel(ctx)
	if first.maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, first.maxWait)
		defer cancel()
		first.maxWait = -1
	}
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case names[a] < names[b]:
			return -1
		case names[a] > names[b]:
			return 1
		}
		return 0
	})
	leases := make([]*Lease, len(names))
	giveUp := func(err error) ([]*Lease, error) {
		for _, i := range slices.Backward(order) {
			if leases[i] != nil {
				_ = leases[i].Release(ctx) // one that cannot be told ends with its TTL
			}
		}
		return nil, err
	}
	for _, i := range order {
		r := first
		r.name = names[i]
		if leases[i], err = c.wait(ctx, parent, r); err != nil {
			return giveUp(err)
		}
	}
	for _, l := range leases { // the first may have been lost while the last was waited for
		if err := l.Err(); err != nil {
			return giveUp(fmt.Errorf("pglock: acquire %d locks: %w", len(names), err))
		}
	}
	return leases, nil
}
