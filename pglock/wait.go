package pglock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// leavePatience is how long a call whose context has ended waits to hear who holds the lock, and the place that it had; the
// queue is left in the background.
const leavePatience = 250 * time.Millisecond

// wait queues until the lock is granted, ctx or the request's own wait ends, or waiting makes no sense.
func (c *Client) wait(ctx, parent context.Context, r request) (*Lease, error) {
	if r.maxWait == 0 {
		return c.try(ctx, parent, r)
	}
	if r.maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.maxWait)
		defer cancel()
	}
	q, err := c.newAsked(ctx, r, true)
	if err != nil {
		return nil, err
	}
	if c.linable(q) {
		return c.waitInLine(ctx, parent, q)
	}
	return c.waitAlone(ctx, parent, q)
}

func (c *Client) waitAlone(ctx, parent context.Context, q *asked) (*Lease, error) {
	return c.settled(ctx, q)(c.waitOnce(ctx, parent, q))
}

func (c *Client) waitOnce(ctx, parent context.Context, q *asked) (*Lease, error) {
	if !c.begin() {
		return nil, fmt.Errorf("acquire lock %q: %w", q.name, ErrClosed)
	}
	defer c.calls.Done()
	g, err := c.queueUp(ctx, q)
	if err != nil {
		return nil, err
	}
	return c.grant(parent, q, g)
}

// granted is a grant as the server tells of it, counted from a local moment before it.
type granted struct {
	first, token Token // of a block; else both are the token
	slot         int
	left         time.Duration
	expiresAt    time.Time // by the server's clock; zero when it was not told
	seen         trust.Instant
}

func granting(a protocol.Answer, sent trust.Instant) granted {
	return granted{first: Token(cmp.Or(a.FirstToken, a.Token)), token: Token(a.Token), slot: a.Slot, left: a.Remaining, expiresAt: a.ExpiresAt, seen: sent}
}

// queueUp queues the request until it is granted. The server is asked once to be queued; then the grant comes with a hint.
// It is asked again only where the hint did not come or came too late to be trusted, and by the first in the queue when the
// holder's lease ends.
func (c *Client) queueUp(ctx context.Context, q *asked) (granted, error) {
	w := newWaiter(q)
	if err := c.enqueue(w); err != nil {
		return granted{}, err
	}
	defer c.dequeue(w)
	var last protocol.Answer
	for busy := time.Millisecond; ; {
		a, sent, err := c.ask(ctx, q)
		switch {
		case err != nil:
			return granted{}, c.giveUpWait(ctx, w, last, err)
		case a.Granted:
			return granting(a, sent), nil
		case a.Ticket == 0: // no server of this schema answers so
			if !pause.For(ctx, busy) {
				return granted{}, c.giveUpWait(ctx, w, a, fmt.Errorf("pglock: acquire lock %q: %w", q.name, ctx.Err()))
			}
			busy = min(2*busy, 100*time.Millisecond)
			continue
		}
		last, q.again, q.queued = a, true, true
		c.queuedAs(w, a, sent)
		news, err := c.await(ctx, w)
		if err != nil {
			return granted{}, c.giveUpWait(ctx, w, last, err)
		}
		if h := news.hint; h != nil {
			if left := c.now().Until(trust.Deadline(h.seen, q.ttl, h.left-q.grace)); left >= q.ttl/2 {
				return granted{first: h.first, token: h.token, slot: h.slot, left: h.left, seen: h.seen}, nil
			}
			// Too long ago to be trusted for long: the next asking renews it.
		}
	}
}

// await blocks until there is news of the waiter, or an error that ends the wait. It holds no connection.
func (c *Client) await(ctx context.Context, w *waiter) (news, error) {
	for {
		n, next := c.newsOf(w)
		switch {
		case n.err != nil:
			return n, n.err
		case n.hint != nil, n.ask:
			return n, nil
		}
		var due <-chan time.Time
		var timer *time.Timer
		if next < never {
			timer = time.NewTimer(next)
			due = timer.C
		}
		var err error
		select {
		case <-w.wake:
		case <-due: // a look may have moved it meanwhile
			if n, next = c.newsOf(w); next <= 0 {
				n.ask = true
			}
			if n.err != nil || n.hint != nil || n.ask {
				return n, n.err
			}
			continue
		case <-c.ctx.Done():
			err = fmt.Errorf("acquire lock %q: %w", w.name, ErrClosed)
		case <-ctx.Done():
			err = fmt.Errorf("pglock: acquire lock %q: %w", w.name, ctx.Err())
		}
		if timer != nil {
			timer.Stop()
		}
		if err != nil {
			return n, err
		}
	}
}

// giveUpWait takes the request back and adds who held the lock to the error that ended the wait. A grant that came in that
// moment goes to the next. The call waits a little to hear what was found; the request is taken back in any case.
func (c *Client) giveUpWait(ctx context.Context, w *waiter, last protocol.Answer, err error) error {
	answered := last.Ticket != 0
	if c.hasLeft(w) || !answered && !w.lost {
		return err
	}
	u := c.giveUp(w.asked)
	timer := time.NewTimer(leavePatience)
	defer timer.Stop()
	select {
	case back := <-u.done:
		if back.Holder != "" {
			last.Holder, last.Token, last.ExpiresAt = back.Holder, back.Token, back.ExpiresAt
		}
		last.Place = cmp.Or(back.Place, last.Place)
	case <-timer.C:
	case <-c.ctx.Done():
	}
	if last.Holder == "" && !answered {
		return err
	}
	return fmt.Errorf("%w: %w", err, heldError(last, w.name))
}
