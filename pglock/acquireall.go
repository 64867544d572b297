package pglock

import (
	"context"
	"slices"
	"sync"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/takeback"
)

// AcquireAll takes several locks: all of them or none. It waits in their queues one after another, in byte
// order of the names where '/' comes before every other byte, whatever their order in the list; so calls of AcquireAll
// that all take subtrees (WithSubtree), or all take none, never wait for each other in a circle, unless one names two
// locks below a subtree that another takes. Then, or if only some take subtrees, one may get ErrDeadlock: it holds a
// lock that is in another's way, and wants a lock that waits behind that other. Try again. All leases have the same
// owner (Leases.Context), and each has its own token. The options apply to each lock, WithMaxWait to all together.
//
// Errors are those of Acquire, and ErrInvalid for an empty list or a repeated name. After an error nothing is
// held: the locks that it has acquired are taken back as after a cancelled call, for which it waits at most a
// quarter of a second.
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...AcquireOption) (*Leases, error) {
	if err := checkNames(names); err != nil {
		return nil, err
	}
	first, err := c.newRequest(names[0], opts)
	if err != nil {
		return nil, err
	}
	if first.owner == nil {
		if first.owner, err = ownerOf(ctx); err != nil {
			return nil, err
		}
	}
	first.Wait = true
	parent := context.WithoutCancel(ctx)
	if first.maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = waitAtMost(ctx, first.maxWait)
		defer cancel()
		first.maxWait = -1
	}
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return compareNames(names[a], names[b]) })
	for _, name := range names {
		r := first
		if r.Name = name; checkSubtree(&r) != nil {
			return nil, checkSubtree(&r)
		}
	}
	leases := make([]*Lease, len(names))
	for _, i := range order {
		r := first
		r.Name = names[i]
		if leases[i], err = c.acquire(ctx, parent, r); err != nil {
			c.giveBack(ctx, leases)
			return nil, err
		}
	}
	for _, l := range leases { // the first may have been lost during the wait for the last
		if err := l.Err(); err != nil {
			c.giveBack(ctx, leases)
			return nil, err
		}
	}
	return together(parent, first.owner, leases), nil
}

// Leases are several leases of one owner, from AcquireAll.
type Leases struct {
	all    []*Lease
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func together(parent context.Context, o *owner, all []*Lease) *Leases {
	ls := &Leases{all: all}
	ls.ctx, ls.cancel = context.WithCancelCause(context.WithValue(parent, ownerKey{}, o))
	for _, l := range all {
		context.AfterFunc(l.ctx, func() { ls.cancel(context.Cause(l.ctx)) })
	}
	return ls
}

// All returns the leases, in the order in which the names were given.
func (ls *Leases) All() []*Lease { return slices.Clone(ls.all) }

// Context is done when one of the leases ends; context.Cause is then that lease's *LostError (ErrLost), or
// ErrReleased. Like Lease.Context it carries the owner of the leases, and the values of AcquireAll's context
// but not its end.
func (ls *Leases) Context() context.Context { return ls.ctx }

// Err is nil while every lease may be trusted; then it is the error of the first ended lease, in the order of
// names.
func (ls *Leases) Err() error {
	for _, l := range ls.all {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Release releases all leases at the same time, each as Lease.Release does. The error joins theirs; its
// text has the first three.
func (ls *Leases) Release(ctx context.Context) error {
	errs := make([]error, len(ls.all))
	var releases sync.WaitGroup
	for i, l := range ls.all {
		releases.Go(func() { errs[i] = l.Release(ctx) })
	}
	releases.Wait()
	return failure.Told(failure.Joined(errs), "pglock: release %d locks", len(ls.all))
}

// giveBack ends leases that nobody has seen. They are taken back like abandoned requests, in the background if
// the server does not answer soon.
func (c *Client) giveBack(ctx context.Context, leases []*Lease) {
	if !c.calls.beginEnd() {
		<-c.ended // Close releases them
		return
	}
	defer c.calls.ends.Done()
	var ended []*Lease
	var backs []*takeback.Request
	for _, l := range leases {
		if l != nil && l.end(ErrReleased) {
			ended, backs = append(ended, l), append(backs, c.takeBack(l.requestID(), l.strays, l.ttl))
		}
	}
	soon, cancel := context.WithTimeout(c.ctx, leavePatience)
	defer cancel()
	for i, u := range backs {
		select {
		case back := <-u.Done:
			ended[i].confirmed(ctx, back.Ended, u.Lost)
		case <-soon.Done():
			ended[i].takenBack(ctx, u, context.Cause(soon))
		}
	}
}
