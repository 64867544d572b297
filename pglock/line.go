package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/trust"
)

// lineLinger is how long a line without calls keeps its ticket of the queue.
const lineLinger = 10 * time.Millisecond

// apartFor is for how many tickets a line does without blocks after a lease that could not be passed on, as one that writes
// under a fence cannot: it is likely not to be the last.
const apartFor = 16

// line is the calls of one client that want the same lock in the same way. The first of them asks for itself; for those that
// come while it asks or holds the lock, one ticket stands in the queue. Its grant carries a block of tokens, and passes from
// call to call in memory, in the order in which they came, each with a token of its own: until the block or its time is used
// up. Only then does the line take its next ticket: so a call of another client that queues meanwhile comes before it, and
// one that queues after it waits for one block of this line at most. The client's mutex guards it.
type line struct {
	key    lineKey
	calls  []*lineCall
	holder *Lease // that holds the lock for the line
	asking bool   // the first call asks for itself
	queued bool   // and has its ticket
	agent  bool   // a goroutine asks for the calls
	wake   chan struct{}
	ticket *waiter // of the one who asks
	apart  int     // so many tickets more are for one turn: the last ones could not be passed on

	leave      context.CancelFunc // takes the agent's request back
	turnsAsked int                // by the agent, which alone uses it
	linger     *time.Timer        // until it does, when no call waits any more
}

// lineKey is what calls must have in common to share a grant: the server shows it as one lease.
type lineKey struct {
	name   string
	holder string
	ttl    time.Duration
}

// lineCall is one call that waits in a line.
type lineCall struct {
	request
	parent context.Context
	done   chan struct{}
	lease  *Lease
	err    error
}

// block is the tokens of one grant. Leases take them in turn; the client's mutex guards it.
type block struct {
	next, last Token // last is the row's
	until      trust.Instant
}

// linable requests may share a grant with others of their client: nothing distinguishes them on the server.
func (c *Client) linable(q *asked) bool {
	return c.config.turns > 1 && !q.apart && q.mode == ModeExclusive && q.metadata == nil && q.grace == 0 && !q.owner.nested()
}

// waitInLine waits together with other calls of this client.
func (c *Client) waitInLine(ctx, parent context.Context, q *asked) (*Lease, error) {
	ln, call, err := c.enter(q, parent)
	if err != nil {
		return nil, err
	}
	if call == nil {
		q.line = ln
		lease, err := c.waitAlone(ctx, parent, q)
		c.askedFirst(ln)
		return lease, err
	}
	select {
	case <-call.done:
	case <-ctx.Done():
		err = fmt.Errorf("pglock: acquire lock %q: %w", q.name, ctx.Err())
	case <-c.ctx.Done():
		err = fmt.Errorf("acquire lock %q: %w", q.name, ErrClosed)
	}
	if err != nil {
		if held, gone := c.stepOut(ln, call); gone {
			if held != nil && !errors.Is(err, ErrClosed) {
				err = fmt.Errorf("%w: %w", err, held)
			}
			return nil, err
		}
		<-call.done // its turn has come in this moment
	}
	if call.err == errApart {
		return c.waitAlone(ctx, parent, q)
	}
	return call.lease, call.err
}

// enter joins the line for the lock. Without one the call begins it, and asks for itself: it gets no lineCall.
func (c *Client) enter(q *asked, parent context.Context) (*line, *lineCall, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, fmt.Errorf("acquire lock %q: %w", q.name, ErrClosed)
	}
	key := lineKey{q.name, q.request.holder, q.ttl}
	ln := c.lines[key]
	if ln == nil {
		ln = &line{key: key, asking: true}
		c.lines[key] = ln
		return ln, nil, nil
	}
	call := &lineCall{request: q.request, parent: parent, done: make(chan struct{})}
	ln.calls = append(ln.calls, call)
	c.tidy(ln)
	return ln, call, nil
}

// askedFirst notes that the first call does not ask any more: it holds the lock, or has failed.
func (c *Client) askedFirst(ln *line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ln.asking = false
	c.tidy(ln)
}

// tidy starts or wakes the agent of a line whose calls wait, and forgets a line that nobody is in. The mutex is held.
func (c *Client) tidy(ln *line) {
	switch {
	case ln.agent:
		signal(ln.wake) // also when no call waits: it is dismissed
	case len(ln.calls) > 0 && !c.closed:
		ln.agent, ln.wake = true, make(chan struct{}, 1)
		c.tasks.Go(func() { c.serve(ln) })
	case len(ln.calls) == 0 && ln.holder == nil && !ln.asking && !ln.agent && c.lines[ln.key] == ln:
		delete(c.lines, ln.key)
	}
}

// errApart sends a call from the line to a ticket of its own.
var errApart = errors.New("the owner holds a lock by now")

// partNested sends calls whose owners have come to hold other locks to tickets of their own: only so can a circle that they
// close be found. The mutex is held.
func (c *Client) partNested() {
	for _, ln := range c.lines {
		ln.calls = slices.DeleteFunc(ln.calls, func(call *lineCall) bool {
			nested := call.owner.nested()
			if nested {
				call.err = errApart
				close(call.done)
			}
			return nested
		})
		c.drained(ln)
	}
}

// stepOut takes a call out of the line whose context has ended, and tells who holds the lock as far as the client knows.
func (c *Client) stepOut(ln *line, call *lineCall) (*HeldError, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range ln.calls {
		if other != call {
			continue
		}
		ln.calls = append(ln.calls[:i:i], ln.calls[i+1:]...)
		c.drained(ln)
		var held *HeldError
		if h := ln.holder; h != nil {
			h.mu.Lock()
			held = &HeldError{Name: h.name, Holder: h.holder, Token: h.token, ExpiresAt: h.expiresAt, Place: i + 1}
			h.mu.Unlock()
		} else if ln.ticket != nil && ln.ticket.answer.Holder != "" {
			held = heldError(ln.ticket.answer, call.name)
			held.Place += i
		}
		return held, true
	}
	return nil, false
}

// drained takes the line's request back after a while in which no call has come. The mutex is held.
func (c *Client) drained(ln *line) {
	if len(ln.calls) > 0 {
		return
	}
	if ln.leave == nil {
		c.tidy(ln)
		return
	}
	leave := ln.leave
	if ln.linger != nil {
		ln.linger.Stop()
	}
	ln.linger = time.AfterFunc(lineLinger, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(ln.calls) == 0 {
			leave()
		}
	})
}

// serve is the agent of a line: it asks the server for the calls that wait, for as long as any do.
func (c *Client) serve(ln *line) {
	for {
		ctx, ok := c.wantsTicket(ln)
		if !ok {
			return
		}
		if !c.begin() {
			continue // it is dismissed
		}
		q, g, err := c.askForLine(ctx, ln)
		c.arrived(ln, q, g, err)
		c.calls.Done()
	}
}

// wantsTicket waits until the line needs a ticket. False says that no call waits: the agent is dismissed.
func (c *Client) wantsTicket(ln *line) (context.Context, bool) {
	for {
		now := c.now()
		c.mu.Lock()
		if len(ln.calls) == 0 || c.closed {
			ln.agent, ln.leave = false, nil
			if ln.linger != nil {
				ln.linger.Stop()
			}
			c.tidy(ln)
			c.mu.Unlock()
			return nil, false
		}
		if ln.asking && !ln.queued { // the first call is first
			c.mu.Unlock()
			c.sleep(never, ln.wake)
			continue
		}
		wait := never
		if b := ln.turns(); b != nil {
			wait = max(0, now.Until(b.until))
		}
		if wait == never || wait == 0 {
			ctx, cancel := context.WithCancel(c.ctx)
			ln.leave, ln.turnsAsked = cancel, c.config.turns
			if ln.apart > 0 {
				ln.apart, ln.turnsAsked = ln.apart-1, 1
			}
			c.mu.Unlock()
			return ctx, true
		}
		c.mu.Unlock()
		c.sleep(wait, ln.wake)
	}
}

// turns is the block that the calls of the line can be served from. The mutex is held.
func (ln *line) turns() *block {
	l := ln.holder
	if l == nil || l.block == nil || l.block.next > l.block.last {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known {
		return nil
	}
	return l.block
}

// askForLine queues for a grant with a block of tokens.
func (c *Client) askForLine(ctx context.Context, ln *line) (*asked, granted, error) {
	owner, err := ownerOf(c.ctx)
	if err != nil {
		return nil, granted{}, err
	}
	r := request{name: ln.key.name, holder: ln.key.holder, ttl: ln.key.ttl, mode: ModeExclusive, maxWait: -1, turns: ln.turnsAsked, owner: owner}
	q, err := c.newAsked(ctx, r, true)
	if err != nil {
		return nil, granted{}, err
	}
	q.line = ln
	g, err := c.queueUp(ctx, q)
	return q, g, err
}

// arrived gives a grant, or the error that ended the asking, to the calls that wait. A grant that came when none waited any
// more goes back.
func (c *Client) arrived(ln *line, q *asked, g granted, err error) {
	c.mu.Lock()
	ln.leave()
	ln.leave, ln.ticket = nil, nil
	if ln.linger != nil {
		ln.linger.Stop()
	}
	if err != nil && c.closed {
		err = fmt.Errorf("acquire lock %q: %w", ln.key.name, ErrClosed)
	}
	var calls []*lineCall
	if err != nil && len(ln.calls) > 0 && !(errors.Is(err, context.Canceled) && c.ctx.Err() == nil) {
		calls, ln.calls = ln.calls, nil // what ends the asking ends it for all
	} else if err == nil && len(ln.calls) > 0 {
		calls, ln.calls = ln.calls[:1:1], ln.calls[1:]
	}
	c.mu.Unlock()
	switch {
	case err == nil && len(calls) == 0:
		c.giveUp(q)
	case err == nil:
		calls[0].lease, calls[0].err = c.grant(calls[0].parent, &asked{request: calls[0].request, grantID: q.grantID, queued: true, line: ln, nameless: true}, g)
		close(calls[0].done)
	default:
		for _, call := range calls {
			call.err = err
			close(call.done)
		}
	}
}

// passOn ends the lease and gives its turn to the next call in its line, without the server, which goes on to see one lease.
// False says that the server must be told: nobody waits here, the turns or the time are used up, or the server or somebody
// else knows this lease as its own, so that its end must be known as well.
func (l *Lease) passOn() bool {
	c := l.client
	if l.block == nil {
		return false
	}
	now := c.now()
	c.mu.Lock()
	ln, b := l.line, l.block
	if c.closed || ln.holder != l || len(ln.calls) == 0 || b.next > b.last || now.Reached(b.until) {
		c.mu.Unlock()
		return false
	}
	l.mu.Lock()
	if l.ended != nil || l.known || now.Until(l.deadline) < l.ttl/2 {
		l.mu.Unlock()
		c.mu.Unlock()
		return false
	}
	l.ended = ErrReleased
	l.owner.held.Add(-1)
	deadline, due, expiresAt := l.deadline, l.due, l.expiresAt
	l.mu.Unlock()

	call := ln.calls[0]
	ln.calls[0] = nil
	ln.calls = ln.calls[1:]
	next := newLease(c, call.parent, call.request, l.grantID, b.next, 0)
	next.row, next.block, next.line, next.queued = l.row, b, ln, true
	next.deadline, next.due, next.expiresAt = deadline, due, expiresAt
	next.nameless = true
	call.owner.has(next)
	l.owner.hasNot(l)
	b.next++
	delete(c.leases, l)
	c.leases[next] = struct{}{}
	ln.holder = next
	if len(ln.calls) == 0 {
		c.drained(ln)
	} else if b.next > b.last {
		signal(ln.wake)
	}
	c.mu.Unlock()
	l.cancel(ErrReleased) // before the next begins
	call.lease = next
	close(call.done)
	return true
}

// makeKnown notes that the end of this lease must go through the server. False says that the lease has ended and that its
// grant is another's turn.
func (l *Lease) makeKnown() bool {
	if l.block == nil {
		return true
	}
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.mu.Lock()
	known, ended := l.known, l.ended != nil
	l.known = known || !ended
	l.mu.Unlock()
	if !known && !ended {
		l.line.apart = apartFor
		l.client.tidy(l.line)
	}
	return known || !ended
}

// current is the lease that has the grant of l now: where l is one turn of a block, the turn that has come to.
func (c *Client) current(l *Lease) *Lease {
	if l.block == nil {
		return l
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := l.line.holder; h != nil && h.block == l.block {
		return h
	}
	return l
}
