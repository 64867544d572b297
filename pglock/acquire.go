package pglock

import (
	"context"
	"errors"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// TryAcquire takes the lock if it is free and nobody is queued for it; otherwise it says at once who holds it. If the
// pool is exhausted it asks over a connection outside the pool; if none comes within ten seconds, it fails.
// ctx bounds the call, never the lease; a grant that comes too late for ctx is given back. The lease is renewed
// until it is released or lost, or the client is closed.
//
// Errors: ErrHeld (HeldError), ErrInvalid, ErrLimit, ErrSelfDeadlock, ErrClosed, ErrPermission, ErrReadOnly,
// ErrSchema, ctx's error; ErrOutcomeUnknown if the connection was lost and the server could not be asked again, or
// refused that for a reason that the error also has, such as ErrReadOnly; ErrLost if the answer took longer than the
// TTL.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	r, err := c.newRequest(name, opts)
	if err != nil {
		return nil, err
	}
	return c.acquire(ctx, context.WithoutCancel(ctx), r)
}

// Acquire takes the lock. While it is held, the call waits in its queue: first come, first served. A waiting
// call holds no connection. ctx bounds the wait, never the lease.
//
// If ctx ends the wait, the call leaves the queue, and a grant that came at that moment goes to the next
// waiter. The error then matches ctx's error, and also ErrHeld once the server has answered (HeldError: who
// held the lock, and the place in the queue). Other errors are those of TryAcquire, such as ErrLost if the answer to a
// grant took longer than the TTL, and ErrDeadlock (DeadlockError). Acquire tolerates an unreachable server for half a
// minute.
func (c *Client) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	r, err := c.newRequest(name, opts)
	if err != nil {
		return nil, err
	}
	r.Wait = true
	return c.acquire(ctx, context.WithoutCancel(ctx), r)
}

// Do runs fn while holding the lock, and releases it when fn returns, panics or calls runtime.Goexit. fn's
// context ends when ctx ends or the lease is lost. The lease is renewed until fn has returned, even while fn winds
// down: a fenced write with a context that goes on is possible until then. Do returns fn's error, joined with ErrLost
// if the lease was lost before fn returned, or with ErrClosed if Close has released it: then fn may have worked
// unprotected. If it cannot take the lock it returns an error as Acquire does, and fn does not run.
func (c *Client) Do(ctx context.Context, name string, fn func(context.Context, *Lease) error,
	opts ...AcquireOption) (err error) {
	r, err := c.newRequest(name, opts)
	if err != nil {
		return err
	}
	if fn == nil {
		return &ArgumentError{"fn", "nil", "be a function"}
	}
	r.Wait = true
	lease, err := c.acquire(ctx, ctx, r)
	if err != nil {
		return err
	}
	defer func() {
		early := lease.Err() // fn has returned: what ends now ends after its work
		switch lost := lease.Release(ctx); {
		case errors.Is(lost, ErrLost) && !errors.Is(err, ErrLost):
			err = errors.Join(err, lost)
		case early != nil && lease.byClose.Load() && !errors.Is(err, ErrClosed):
			err = errors.Join(err, ErrClosed)
		}
		err = failure.OfContext(ctx, err)
	}()
	return fn(lease.Context(), lease)
}

// acquire gets a lease, whose context is a child of parent.
func (c *Client) acquire(ctx, parent context.Context, r request) (*Lease, error) {
	r.sight = c.look(ctx)
	l, err := c.get(ctx, parent, r)
	if err != nil {
		err = failure.At(ctx, err, "pglock: acquire lock %q", r.Name)
		c.failed(&r, err)
	}
	return l, err
}

// get is acquire for a call that is observed. The server's first answer grants a free lock. For a held lock the call
// waits in the server's queue.
func (c *Client) get(ctx, parent context.Context, r request) (*Lease, error) {
	switch {
	case r.maxWait == 0:
		r.Wait = false
	case r.Wait && r.maxWait > 0:
		var cancel context.CancelFunc
		ctx, cancel = waitAtMost(ctx, r.maxWait)
		defer cancel()
	}
	q, err := c.newPending(ctx, r)
	if err != nil {
		return nil, err
	}
	l, err := c.obtain(ctx, parent, q)
	if err == nil && q.Grace > 0 {
		return c.settle(ctx, q, l)
	}
	return l, err
}

// obtain requests a grant, and makes a lease of it.
func (c *Client) obtain(ctx, parent context.Context, q *pending) (*Lease, error) {
	if !c.calls.begin(q, c.now()) {
		return nil, ErrClosed
	}
	defer c.calls.end(q)
	g, err := c.getGrant(ctx, q)
	if err != nil {
		return nil, err
	}
	return c.grant(parent, q, g)
}

// granted is a grant as the server reported it, counted from a local time before it.
type granted struct {
	token     int64
	slot      int
	left      time.Duration
	expiresAt time.Time // by the server's clock; zero if unknown
	seen      trust.Instant
	asked     bool // seen is when the server was asked for it; else it told of the grant by itself
}

func grantOf(a protocol.Answer, sent trust.Instant) granted {
	return granted{a.Token, a.Slot, a.Remaining, a.ExpiresAt, sent, true}
}

// getGrant requests the lock, and waits for it if it is held and the request says so.
func (c *Client) getGrant(ctx context.Context, q *pending) (granted, error) {
	a, err := c.ask(ctx, q)
	for n := 0; n < undecided && err == nil && q.isFree(a); n++ {
		pause.For(ctx, firstAgain)
		a, err = c.ask(ctx, q)
	}
	if q.Subtree && err == nil && a.Ticket != 0 {
		if a, err = c.askForSubtree(ctx, q, a); err != nil {
			return granted{}, err
		}
	}
	switch {
	case err == nil && a.Granted:
		return grantOf(a, q.Asked), nil
	case err == nil && q.Wait:
		return c.waitInQueue(ctx, q, a)
	case err == nil:
		err = c.heldError(a, q.Name)
	case q.Wait:
		return granted{}, c.leaveQueue(q, protocol.Answer{}, err)
	}
	if q.lost {
		c.takeBack(q.RequestID, true, q.TTL) // it may be granted, now or later, and nobody would know
	}
	return granted{}, err
}

// heldError says who holds the lock, by the server's answer.
func (c *Client) heldError(a protocol.Answer, name string) *HeldError {
	return &HeldError{Lock: name, Holder: a.Holder, By: a.By, Token: Token(a.Token), ExpiresAt: a.ExpiresAt,
		Place: a.Place, OwnSince: c.leases.since(Token(a.Token))}
}

// grant makes the lease of a grant. The trust deadline counts from when the request was sent; a later answer is
// no lease any more.
func (c *Client) grant(parent context.Context, q *pending, g granted) (*Lease, error) {
	l := newLease(c, parent, q.request, q.GrantID, Token(g.token), g.slot)
	l.queued, l.strays = q.queued, q.lost
	if g.asked {
		l.took = c.now().Mono - g.seen.Mono
	}
	l.extend(g.seen, protocol.Verdict{Remaining: g.left, ExpiresAt: g.expiresAt}, sooner())
	l.owner.takes(l) // from now on other goroutines may find it
	err := l.Err()
	if err == nil {
		err = c.adopt(l)
	}
	if err != nil {
		l.end(ErrReleased)
		c.takeBack(q.RequestID, q.lost, q.TTL)
		return nil, err
	}
	return l, nil
}
