package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
)

// How a waiting call looks again: when the holder's lease ends, and at an interval that grows from the first to the
// second, with jitter. A look that finds the lock held writes nothing.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second

	// outage is how long a waiting call bears a server that cannot be reached.
	outage = 30 * time.Second
	// settling is how long TryAcquire tries to learn what became of a request whose answer was lost.
	settling = 10 * time.Second
)

// TryAcquire takes the lock if it is free, and says at once who holds it if not. ctx bounds the call, never the lease;
// a grant that comes too late for ctx is given back. The lease is renewed until it is released, lost, or the client is
// closed.
//
// Errors: ErrHeld (HeldError), ErrInvalid, ErrClosed, ErrPermission, ErrReadOnly, ctx's error, ErrOutcomeUnknown when
// the connection was lost and the server could not be asked again, ErrLost when the answer took longer than the TTL.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	r, err := c.newRequest(name, opts)
	if err != nil {
		return nil, err
	}
	return c.try(ctx, context.WithoutCancel(ctx), r)
}

// Acquire takes the lock, waiting while somebody else holds it. ctx bounds the wait, never the lease. A wait that ctx
// ends fails with an error that is both ctx's error and, if somebody held the lock, ErrHeld. Other errors are those of
// TryAcquire; a server that cannot be reached is borne for half a minute.
func (c *Client) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	r, err := c.newRequest(name, opts)
	if err != nil {
		return nil, err
	}
	return c.wait(ctx, context.WithoutCancel(ctx), r)
}

// Do runs fn while holding the lock, and releases it when fn returns, panics or calls runtime.Goexit. fn's context ends
// when ctx ends or the lease is lost; the lease is renewed until fn has returned, also while fn winds down. The error is
// fn's, joined with ErrLost when the lease was lost before fn returned: then fn may have worked unprotected. Errors of
// taking the lock are those of Acquire, and fn did not run.
func (c *Client) Do(ctx context.Context, name string, fn func(context.Context, *Lease) error, opts ...AcquireOption) (err error) {
	r, err := c.newRequest(name, opts)
	if err != nil {
		return err
	}
	if fn == nil {
		return &ArgumentError{"fn", "nil", "be a function"}
	}
	lease, err := c.wait(ctx, ctx, r)
	if err != nil {
		return err
	}
	defer func() {
		if lost := lease.Release(ctx); errors.Is(lost, ErrLost) {
			err = errors.Join(err, lost)
		}
	}()
	return fn(lease.Context(), lease)
}

// wait tries until the lock is granted, ctx or the request's own wait ends, or trying makes no sense.
func (c *Client) wait(ctx, parent context.Context, r request) (*Lease, error) {
	if r.maxWait == 0 {
		return c.try(ctx, parent, r)
	}
	if r.maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.maxWait)
		defer cancel()
	}
	var held *HeldError
	var unreachable time.Time // since when
	look := firstLook
	for {
		lease, err := c.try(ctx, parent, r)
		now := time.Now()
		next := look
		switch {
		case err == nil:
			return lease, nil
		case errors.As(err, &held):
			unreachable = time.Time{}
			if held.Holder != "" {
				next = min(next, held.remaining)
			}
		case ctx.Err() != nil:
			return nil, waitError(err, held)
		case c.isClosed(), !connectionLost(err):
			return nil, err
		case unreachable.IsZero():
			unreachable = now
		case now.Sub(unreachable) > outage:
			return nil, err
		}
		timer := time.NewTimer(next + rand.N(next/4+time.Millisecond))
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("acquire lock %q: %w", r.name, ErrClosed)
		case <-ctx.Done():
			timer.Stop()
			return nil, waitError(fmt.Errorf("pglock: acquire lock %q: %w", r.name, ctx.Err()), held)
		}
		look = min(2*look, lastLook)
	}
}

// waitError adds who held the lock to an error that ended the wait for it.
func waitError(err error, held *HeldError) error {
	if held == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, held)
}

// try asks once for a new grant. The grant ID is chosen before the first request and stays for every repetition, so
// that a request whose answer was lost yields the same grant.
func (c *Client) try(ctx, parent context.Context, r request) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("pglock: acquire lock %q: %w", r.name, err)
	}
	if c.isClosed() {
		return nil, fmt.Errorf("acquire lock %q: %w", r.name, ErrClosed)
	}
	grantID, err := newGrantID()
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithCancel(ctx) // a request that hangs ends with the client too
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	var giveUp <-chan time.Time // starts with the first lost answer
	inDoubt := false
	for delay := 2 * time.Millisecond; ; delay = min(2*delay, 250*time.Millisecond) {
		sent := c.now()
		a, err := c.store.acquire(asking, r, c.session, grantID, inDoubt)
		switch {
		case err == nil && a.granted:
			return c.grant(parent, r, grantID, a, sent)
		case err == nil:
			if inDoubt {
				c.giveBack(r, grantID) // the attempt before may still be on its way
			}
			return nil, &HeldError{Name: r.name, Holder: a.holder, Token: a.token, ExpiresAt: a.expiresAt, remaining: a.remaining}
		case asking.Err() != nil:
			if inDoubt || !neverSent(err) {
				c.giveBack(r, grantID) // the request may have been granted: nobody would know that they hold it
			}
			if ctx.Err() == nil {
				return nil, fmt.Errorf("acquire lock %q: %w", r.name, ErrClosed)
			}
			return nil, fmt.Errorf("pglock: acquire lock %q: %w", r.name, ctx.Err())
		case sqlState(err) == stateSpentGrantID:
			if grantID, err = newGrantID(); err != nil {
				return nil, err
			}
			inDoubt = false
			continue
		case r.metadata != nil && slices.Contains([]string{"22P02", "22P05", "22003"}, sqlState(err)):
			return nil, &ArgumentError{"metadata", shorten(string(r.metadata)), "be a value that jsonb can hold: " + messageOf(err)}
		case neverSent(err) && !inDoubt, !connectionLost(err):
			return nil, fmt.Errorf("pglock: acquire lock %q: %w", r.name, ErrorFromSQL(err, r.name, 0))
		}
		if !inDoubt {
			inDoubt, giveUp = true, time.After(min(settling, r.ttl))
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-c.ctx.Done():
			timer.Stop()
			c.giveBack(r, grantID)
			return nil, fmt.Errorf("acquire lock %q: %w: %w", r.name, ErrClosed, err)
		case <-giveUp:
			timer.Stop()
			c.giveBack(r, grantID)
			return nil, fmt.Errorf("acquire lock %q: %w: %w", r.name, ErrOutcomeUnknown, err)
		}
		timer.Stop()
	}
}

// grant makes the lease of a grant. The trust deadline counts from when the request was sent; an answer that came after
// it is no lease any more.
func (c *Client) grant(parent context.Context, r request, grantID uuid.UUID, a answer, sent instant) (*Lease, error) {
	l := newLease(c, parent, r, grantID, a.token)
	l.extend(sent, a.remaining)
	if !l.Valid() {
		c.giveBack(r, grantID)
		return nil, l.Err()
	}
	if err := c.adopt(l); err != nil {
		l.end(ErrReleased)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(parent), min(closeGrace, r.ttl))
		defer cancel()
		_, _ = c.store.release(ctx, l.claim()) // ends with its TTL where this fails
		return nil, fmt.Errorf("acquire lock %q: %w", r.name, err)
	}
	return l, nil
}

// giveBack ends a grant that no caller waits for, in the background, for as long as the lease could last; once the client
// is closed, for closeGrace. The server is told twice: the second telling finds what was under way during the first.
func (c *Client) giveBack(r request, grantID uuid.UUID) {
	give := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), r.ttl)
		defer cancel()
		defer context.AfterFunc(c.ctx, func() {
			timer := time.AfterFunc(closeGrace, cancel)
			context.AfterFunc(ctx, func() { timer.Stop() })
		})()
		for told := 0; told < 2; {
			attempt, cancel := context.WithTimeout(ctx, closeGrace)
			err := c.store.abandon(attempt, r.name, grantID)
			cancel()
			if err == nil {
				told++
			}
			if told < 2 && !pause(ctx, 50*time.Millisecond) {
				return
			}
		}
	}
	if !c.background(give) {
		give()
	}
}
