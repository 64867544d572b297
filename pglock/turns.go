package pglock

import (
	"context"
	"errors"
	"fmt"

	"github.com/pglock-dev/pglock/internal/handoff"
)

// line is the calls of this client that want one lock in the same way.
type line = handoff.Line[*turnCall, *Lease]

// turnCall is one call that waits in a line.
type turnCall struct {
	request
	parent context.Context
	done   chan struct{} // closed when lease or err is there
	lease  *Lease
	err    error
}

// errApart tells a call to leave the line and take its own ticket.
var errApart = errors.New("the owner holds another lock now")

// sharesTurns reports whether the request may share a grant with others of its client, because the server
// cannot tell them apart.
func (c *Client) sharesTurns(q *pending) bool {
	return q.Wait && c.config.turns > 1 && !q.apart && q.Mode == string(ModeExclusive) && q.Metadata == nil && q.Grace == 0 && !q.owner.Nested()
}

// waitForTurn waits in a line until the lock passes to the call.
func (c *Client) waitForTurn(ctx context.Context, q *pending, ln *line, call *turnCall) (*Lease, error) {
	select {
	case <-call.done:
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	if ctx.Err() != nil || c.isClosed() {
		if place, holder, a := c.lines.StepOut(ln, call); place > 0 {
			err := c.endOfWait(ctx)
			held := heldError(a, q.Name)
			if held.Place += place - 1; holder != nil {
				held = holder.heldError(place)
			}
			if held.Holder != "" && !errors.Is(err, ErrClosed) {
				err = fmt.Errorf("%w: %w", err, held)
			}
			return nil, err
		}
		<-call.done // its turn has just come
	}
	if call.err == errApart {
		return c.obtain(ctx, call.parent, q)
	}
	return call.lease, call.err
}

// waitsInLine tells that a call has joined a line that others have begun. It is called under the mutex of the lines, so
// that the call's turn cannot come before.
func (c *Client) waitsInLine(call *turnCall, place int) { c.waiting(&call.request, place) }

// partNested moves calls whose owners now hold other locks from the line to their own tickets: otherwise a
// circle that they close would not be found.
func (c *Client) partNested() {
	for _, call := range c.lines.Part(func(call *turnCall) bool { return call.owner.Nested() }) {
		call.err = errApart
		close(call.done)
	}
}

// serve is the agent of a line: it asks the server on behalf of the waiting calls, while there are any.
func (c *Client) serve(ln *line) {
	for {
		ctx, cancel := context.WithCancel(c.ctx)
		turns, wait := c.lines.Plan(ln, c.now(), c.isClosed(), cancel)
		switch {
		case turns > 0:
			c.serveTurns(ctx, ln, turns)
		case wait > 0:
			c.sleep(c.ctx, wait, ln.Wake)
		}
		cancel()
		if turns == 0 && wait == 0 {
			return
		}
	}
}

// serveTurns queues for a grant with a block of tokens, and gives it, or the error that ended the wait, to the
// waiting calls. If none waits any more, the grant goes back.
func (c *Client) serveTurns(ctx context.Context, ln *line, turns int) {
	owner, err := ownerOf(c.ctx)
	var q *pending
	var g granted
	if err == nil {
		r, _ := c.newRequest(ln.Key.Name, nil) // valid, like those of its calls
		r.Holder, r.TTL, r.Grace, r.Wait, r.Turns, r.owner = ln.Key.Holder, ln.Key.TTL, 0, true, turns, owner
		q, err = c.newPending(ctx, r)
	}
	if err == nil && !c.calls.begin(q, c.now()) {
		err = ErrClosed
	} else if err == nil {
		defer c.calls.end(q)
		q.line, q.byAgent = ln, true
		g, err = c.getGrant(ctx, q)
	}
	if err != nil && c.isClosed() {
		err = ErrClosed
	}
	calls := c.lines.Arrived(ln, err == nil, errors.Is(err, context.Canceled) && !c.isClosed())
	if err == nil && len(calls) == 0 {
		c.takeBack(q.RequestID, q.lost, q.TTL)
	}
	for _, call := range calls {
		if call.err = err; err == nil {
			turn := &pending{request: call.request, queued: true, line: ln, byAgent: true}
			turn.GrantID = q.GrantID
			call.lease, call.err = c.grant(call.parent, turn, g)
		}
		close(call.done)
	}
}

// passOn ends the lease and passes its turn to the next call in its line, without the server, which still sees
// one lease. False: the release must go through the server.
func (l *Lease) passOn(ctx context.Context) bool {
	if l.turn == nil {
		return false
	}
	c := l.client
	var next *turnCall
	now := c.now()
	passed := c.lines.Pass(l.turn, now, func(call *turnCall, token int64, turn *handoff.Turn[*turnCall, *Lease]) (*Lease, bool) {
		lease := newLease(c, call.parent, call.request, l.grantID, Token(token), 0)
		lease.row, lease.turn, lease.queued, lease.unnamed = l.row, turn, true, true
		if !c.leases.replace(ctx, l, lease, now) {
			lease.owner.held.Add(-1) // it never existed
			lease.cancel(ErrReleased)
			return nil, false
		}
		call.owner.has(lease)
		l.owner.hasNot(l)
		next, call.lease = call, lease
		return lease, true
	})
	if passed {
		l.cancel(ErrReleased) // before the next turn begins
		close(next.done)
	}
	return passed
}

// makeKnown notes that this lease must end through the server. False: the lease has ended and its grant is
// another call's turn.
func (l *Lease) makeKnown() bool { return l.turn == nil || l.client.lines.MakeKnown(l.turn) }

// current returns the lease that has the grant of l now. If l is a turn of a block, that is the block's present
// turn.
func (c *Client) current(l *Lease) *Lease {
	if l.turn != nil {
		if now, found := c.lines.Current(l.turn); found {
			return now
		}
	}
	return l
}

// heldError reports that this lease is held, and the call's place in the line of its client.
func (l *Lease) heldError(place int) *HeldError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &HeldError{Name: l.name, Holder: l.holder, Token: l.token, ExpiresAt: l.expiresAt, Place: place}
}
