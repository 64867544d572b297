package pglock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/takeback"
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
	first.apart, first.Wait = true, true
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
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(names[a], names[b]) })
	leases := make([]*Lease, len(names))
	for _, i := range order {
		r := first
		r.Name = names[i]
		if leases[i], err = c.acquire(ctx, parent, r); err != nil {
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
	if !c.calls.beginEnd() {
		<-c.ended // Close releases them
		return
	}
	defer c.calls.ends.Done()
	var backs []*takeback.Request
	for _, l := range leases {
		if l != nil && l.end(ErrReleased) {
			backs = append(backs, c.takeBack(protocol.RequestID{Name: l.name, GrantID: l.grantID}, false, l.ttl))
		}
	}
	timer := time.NewTimer(leavePatience)
	defer timer.Stop()
	for _, u := range backs {
		select {
		case <-u.Done:
		case <-timer.C:
			return
		case <-c.ctx.Done():
			return
		}
	}
}
