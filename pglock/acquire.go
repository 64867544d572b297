package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// outage is how long a waiting call bears a server that cannot be reached.
	outage = 30 * time.Second
	// settling is how long TryAcquire tries to learn what became of a request whose answer was lost.
	settling = 10 * time.Second
	// lockedOutPause is between two attempts of a waiting call that finds the lock's row locked for long.
	lockedOutPause = 100 * time.Millisecond
)

// TryAcquire takes the lock if it is free and nobody is queued for it, and says at once who holds it if not. ctx bounds
// the call, never the lease; a grant that comes too late for ctx is given back. The lease is renewed until it is
// released, lost, or the client is closed.
//
// Errors: ErrHeld (HeldError), ErrInvalid, ErrLimit, ErrSelfDeadlock, ErrClosed, ErrPermission, ErrReadOnly, ctx's error,
// ErrOutcomeUnknown when the connection was lost and the server could not be asked again, ErrLost when the answer took
// longer than the TTL.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	r, err := c.newRequest(name, opts)
	if err != nil {
		return nil, err
	}
	return c.try(ctx, context.WithoutCancel(ctx), r)
}

// Acquire takes the lock, waiting in its queue while it is held: first come, first served. It holds no connection while it
// waits. ctx bounds the wait, never the lease. A wait that ctx ends leaves the queue, gives a grant that came in that
// moment to the next, and fails with an error that is ctx's error, and ErrHeld too once the server has answered (HeldError: who
// held it, and the place in the queue). Other errors are those of TryAcquire, and ErrDeadlock (DeadlockError); a server that cannot be
// reached is borne for half a minute.
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

// asked is one request with its grant ID, which is chosen before it is sent for the first time and stays for every
// repetition, so that a request whose answer was lost yields the same grant or ticket.
type asked struct {
	request
	grantID  uuid.UUID     // changes under the client's mutex
	queued   bool          // it was answered with a ticket
	again    bool          // an earlier attempt was sent: the next is to wait for it
	lost     bool          // the answer of an attempt was lost: that one may still be on its way; changes under the client's mutex
	bears    time.Duration // how long it bears a server that cannot be reached
	line     *line         // that it is the first of, or asks for
	nameless bool          // it was asked for a line
}

func (c *Client) newAsked(ctx context.Context, r request, wait bool) (*asked, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("pglock: acquire lock %q: %w", r.name, err)
	}
	if c.isClosed() {
		return nil, fmt.Errorf("acquire lock %q: %w", r.name, ErrClosed)
	}
	var err error
	if r.owner == nil {
		if r.owner, err = ownerOf(ctx); err != nil {
			return nil, err
		}
	}
	q := &asked{request: r, bears: min(settling, r.ttl)}
	if q.wait = wait; wait {
		q.bears = outage
	}
	if q.grantID, err = newGrantID(); err != nil {
		return nil, err
	}
	return q, nil
}

// try asks once for a new grant, without queueing.
func (c *Client) try(ctx, parent context.Context, r request) (*Lease, error) {
	q, err := c.newAsked(ctx, r, false)
	if err != nil {
		return nil, err
	}
	return c.settled(ctx, q)(c.tryOnce(ctx, parent, q))
}

func (c *Client) tryOnce(ctx, parent context.Context, q *asked) (*Lease, error) {
	if !c.begin() {
		return nil, fmt.Errorf("acquire lock %q: %w", q.name, ErrClosed)
	}
	defer c.calls.Done()
	a, sent, err := c.ask(ctx, q)
	if err == nil && a.Granted {
		return c.grant(parent, q, granting(a, sent))
	}
	if q.lost {
		c.giveUp(q) // it may have been granted, or may yet be: nobody would know that they hold it
	}
	if err != nil {
		return nil, err
	}
	return nil, heldError(a, q.name)
}

// askOf is the request as it is sent now.
func (c *Client) askOf(q *asked) protocol.Ask {
	return protocol.Ask{Request: protocol.Request{Name: q.name, GrantID: q.grantID}, Session: c.who(), Holder: q.request.holder, TTL: q.ttl, Grace: q.grace,
		Metadata: q.metadata, Mode: string(q.mode), Capacity: q.capacity, Wait: q.wait, Turns: q.turns, Owner: q.owner.id, Nested: q.owner.nested(), Retry: q.again}
}

func heldError(a protocol.Answer, name string) *HeldError {
	return &HeldError{Name: name, Holder: a.Holder, Token: Token(a.Token), ExpiresAt: a.ExpiresAt, Place: a.Place}
}

// ask sends the request until it is answered, ctx or the client ends, or trying makes no sense. What was granted to others
// on the way is told to them. What becomes of an attempt that is under way when the call ends is the orphanage's.
func (c *Client) ask(ctx context.Context, q *asked) (protocol.Answer, trust.Instant, error) {
	asking, cancel := context.WithCancel(ctx) // a request that hangs ends with the client too
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	var giveUp <-chan time.Time // starts with the first failure
	for delay := 2 * time.Millisecond; ; delay = min(2*delay, 250*time.Millisecond) {
		sent := c.now()
		var a protocol.Answer
		err := q.owner.makeKnown(asking)
		if err == nil {
			a, err = c.backend.Acquire(asking, c.askOf(q))
		} else if protocol.ConnectionLost(err) {
			err = &coalesce.NotSentError{Err: err} // the request was not sent
		}
		if server.AnswerLost(err) {
			c.noteLost(q)
		}
		switch {
		case err == nil:
			c.tell(ctx, q.name, a.Handed, sent)
			return a, sent, nil
		case asking.Err() != nil && !c.isClosed():
			return a, sent, fmt.Errorf("pglock: acquire lock %q: %w", q.name, ctx.Err())
		case asking.Err() != nil || errors.Is(err, ErrClosed):
			return a, sent, fmt.Errorf("acquire lock %q: %w", q.name, ErrClosed)
		case protocol.State(err) == protocol.StateSpentGrantID:
			if err := c.chooseAnew(q); err != nil {
				return a, sent, err
			}
			continue
		case q.metadata != nil && slices.Contains([]string{"22P02", "22P05", "22003"}, protocol.State(err)):
			return a, sent, &ArgumentError{"metadata", argument.Shorten(string(q.metadata)), "be a value that jsonb can hold: " + protocol.Message(err)}
		case protocol.LockedOut(err) && q.wait: // for as long as ctx; no connection is held meanwhile
			pause.For(asking, lockedOutPause)
			continue
		case protocol.LockedOut(err) && !q.again: // somebody is being granted the lock, and has been for a second
			return protocol.Answer{}, sent, nil
		case server.NeverSent(err) && !q.again && !q.wait, !protocol.ConnectionLost(err) && !(protocol.LockedOut(err) && q.again):
			return a, sent, fmt.Errorf("pglock: acquire lock %q: %w", q.name, ErrorFromSQL(err, q.name, 0))
		}
		if giveUp == nil {
			giveUp = time.After(q.bears)
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-c.ctx.Done():
			timer.Stop()
			return a, sent, fmt.Errorf("acquire lock %q: %w: %w", q.name, ErrClosed, err)
		case <-giveUp:
			timer.Stop()
			if !q.lost {
				return a, sent, fmt.Errorf("pglock: acquire lock %q: %w", q.name, err)
			}
			return a, sent, fmt.Errorf("acquire lock %q: %w: %w", q.name, ErrOutcomeUnknown, err)
		}
		timer.Stop()
	}
}

// noteLost notes that an attempt may still be on its way. Close may be about to take the request back.
func (c *Client) noteLost(q *asked) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.again, q.lost = true, true
}

// chooseAnew gives the request another grant ID: the one before was used, and nothing is left of it.
func (c *Client) chooseAnew(q *asked) error {
	id, err := newGrantID()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q.grantID, q.again, q.lost = id, false, false
	return nil
}

// grant makes the lease of a grant. The trust deadline counts from when the request was sent; an answer that came after
// it is no lease any more.
func (c *Client) grant(parent context.Context, q *asked, g granted) (*Lease, error) {
	l := newLease(c, parent, q.request, q.grantID, g.first, g.slot)
	l.row, l.queued, l.line = g.token, q.queued, q.line
	if l.line != nil && g.first < g.token {
		l.block = &block{next: g.first + 1, last: g.token, until: c.now().Add(c.config.turnsWithin)}
	}
	if q.nameless {
		l.nameless = true
		q.owner.has(l)
	}
	l.extend(g.seen, protocol.Verdict{Remaining: g.left, ExpiresAt: g.expiresAt}, sooner())
	if !l.Valid() {
		c.giveUp(q)
		return nil, l.Err()
	}
	if err := c.adopt(l); err != nil {
		l.end(ErrReleased)
		c.giveUp(q)
		return nil, fmt.Errorf("acquire lock %q: %w", q.name, err)
	}
	return l, nil
}
