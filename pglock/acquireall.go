package pglock

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// AcquireAll takes several locks: all of them or none. It waits in their queues, one after another in byte order of the
// names, whatever order they are given in; so calls of AcquireAll never wait for each other in a circle. All leases have
// the same owner (Lease.Context), each has a token of its own; they come in the order of names. The options count for each,
// WithMaxWait for all together.
//
// Errors are those of Acquire, and ErrInvalid for an empty list or a name that is there twice. After an error nothing is
// held: what was acquired is given back as a cancelled call's request is, for which it waits a quarter of a second at most.
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
	for _, i := range order {
		r := first
		r.name = names[i]
		if leases[i], err = c.wait(ctx, parent, r); err != nil {
			c.giveBack(leases)
			return nil, err
		}
	}
	for _, l := range leases { // the first may have been lost while the last was waited for
		if err := l.Err(); err != nil {
			c.giveBack(leases)
			return nil, fmt.Errorf("pglock: acquire %d locks: %w", len(names), err)
		}
	}
	return leases, nil
}

// giveBack ends leases that nobody has seen. They go back with other requests that are taken back: where the server does not
// answer soon, in the background.
func (c *Client) giveBack(leases []*Lease) {
	if !c.begin() {
		<-c.ended // Close releases them
		return
	}
	defer c.calls.Done()
	var ups []*giveUp
	for _, l := range leases {
		if l != nil && l.end(ErrReleased) {
			ups = append(ups, c.giveUp(&asked{request: request{name: l.name, ttl: l.ttl}, grantID: l.grantID}))
		}
	}
	timer := time.NewTimer(leavePatience)
	defer timer.Stop()
	for _, u := range ups {
		select {
		case <-u.done:
		case <-timer.C:
			return
		case <-c.ctx.Done():
			return
		}
	}
}
