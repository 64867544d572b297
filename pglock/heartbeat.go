package pglock

import (
	"context"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// idle is how long the heartbeat keeps its connection without anything to renew.
	idle = 30 * time.Second
	// cutOff is how long a statement may take before its connection is given up, at least: it may only be slow, and on
	// a full server a connection that was closed may not come back. Those who cannot wait for it ask again beside it.
	cutOff = 2 * time.Second
	// lookPatience is how long one look at the queue may take, or one sign of life. The next look goes beside it, on
	// another connection, if it has not been answered after lookAgain, or after so many times as long as the last one
	// took. When looks have failed for patience or for as long as the session lives, they do not hurry any more: one at
	// a time may take patience, because each that is given up costs a server or pooler that hangs a connection.
	lookPatience = 5 * time.Second
	lookAgain    = time.Second
	slowLook     = 4
	// backWithin is how soon a request should be taken back. Its call may wait for that (leavePatience).
	backWithin = time.Second
	// sweepEvery is how often clients that work remove what nobody needs any more. One does it for all. Whoever may
	// have left some goes on after sweepOn. Whoever fails, or finds that another has done it within sweptLately, asks
	// again after up to othersSweep. Of two that go on one finds the other.
	sweepEvery  = time.Minute
	sweepOn     = time.Second
	sweptLately = 45 * time.Second
	othersSweep = 10 * sweepEvery

	// A statement is made so small that it takes a twelfth of the shortest TTL of a lease, or of the session while
	// calls wait, and at most half a second: that is how long it holds up others.
	holdsUp     = 12
	holdsUpMost = 500 * time.Millisecond
	// If it takes longer, work that is due goes beside it, on another connection, as soon as it has waited for a
	// quarter of its time.
	waitsFor = 4
)

// The kinds of the heartbeat's work. From 0 on, a kind is a class of leases.
const (
	nothing = -1 - iota
	looking
	takingBack
	sweeping
	signing
)

// classes of leases there are, from MinTTL to MaxTTL.
const classes = 20

// classOf is the class of the leases with about this TTL. No lease of a class has twice the TTL of another.
func classOf(ttl time.Duration) int { return bits.Len64(uint64(ttl/MinTTL)) - 1 }

// agenda is what the heartbeat has to do besides what is under way. Its times are from now.
type agenda struct {
	kind   int           // of the due work whose end comes first
	end    time.Duration // until then
	next   time.Duration // until some work is due
	beside time.Duration // until some work can wait no longer for the statement under way
	hold   time.Duration // for so long a statement may hold up others
}

// add adds work that is due at a time, and useless after its end.
func (a *agenda) add(kind int, due, end time.Duration) {
	a.next = min(a.next, due)
	a.beside = min(a.beside, due+max(0, end-due)/waitsFor)
	if due <= 0 && end < a.end {
		a.kind, a.end = kind, end
	}
}

// flight is a statement under way.
type flight struct {
	kind  int
	began time.Duration
	until time.Duration // others of its kind wait for it no longer
}

// heart is the heartbeat of a client. Only its goroutine uses it.
type heart struct {
	*Client
	underWay []*flight
	landed   chan *flight
	last     *flight      // other work waits for this one; nil: for none
	sweeps   atomic.Int64 // when the next sweep is due
	left     atomic.Bool  // the last one may have left some
}

// heartbeat renews every lease of the client, looks after every waiting call, and takes back what nobody waits for any
// more. Work whose end comes first goes first, one statement after the other. A statement that takes so long that other
// work cannot wait is left alone, and the other work goes beside it.
func (c *Client) heartbeat() {
	h := heart{Client: c, landed: make(chan *flight)}
	h.sweepIn(rand.N(sweepEvery))
	for c.ctx.Err() == nil {
		now := c.now()
		a, wake := h.plan(now)
		switch {
		case a.kind != nothing && (h.last == nil || wake <= 0):
			h.start(now, a)
		case len(h.underWay) == 0 && a.next == never && wake > idle: // nothing is left to do
			if !h.wait(idle) {
				c.backend.CloseOwn()
				h.wait(less(wake, idle))
			}
		default:
			h.wait(wake)
		}
	}
}

// plan says what to do, and how long the heartbeat may wait for more.
func (h *heart) plan(now trust.Instant) (a agenda, wake time.Duration) {
	a = agenda{nothing, never, never, never, holdsUpMost}
	look := h.queue.UntilLook(now)
	if look != never {
		a.hold = min(a.hold, h.config.sessionTTL/holdsUp)
		if h.hasRoom(now, looking) {
			// one may fail and cost the session nothing
			a.add(looking, look, max(look, 0)+min(h.config.sessionTTL/8, lookAgain))
		}
	}
	if back := h.takebacks.Until(now.Mono); back != never && h.hasRoom(now, takingBack) {
		a.add(takingBack, back, max(back, 0)+backWithin)
	}
	sweep := time.Duration(h.sweeps.Load()) - now.Mono
	if (h.left.Load() || h.worked.Load() && sweep <= 0) && h.hasRoom(now, sweeping) {
		a.add(sweeping, max(sweep, 0), sweepEvery)
	}
	return h.leases.plan(now, a, h, look != never)
}

// hasRoom reports whether another statement of the kind may go beside those under way. One for other leases of a class
// may: the first may hang. So may one beside a look that should have been answered.
func (h *heart) hasRoom(now trust.Instant, kind int) bool {
	n, late := 0, 0
	for _, f := range h.underWay {
		switch {
		case f.kind != kind:
		case now.Mono < f.until:
			n++
		default:
			late++
		}
	}
	return n == 0 && (late < 2 || kind >= 0) || n == 1 && kind >= 0
}

// start does what is due.
func (h *heart) start(now trust.Instant, a agenda) {
	switch a.kind {
	case looking:
		if look, _ := h.queue.DueLook(now); look != nil {
			limit := min(lookPatience, h.config.sessionTTL/3) // before the session counts as dead
			beside := min(limit, max(lookAgain, slowLook*look.Took))
			if look.Failing > min(patience, h.config.sessionTTL) {
				limit, beside = patience, patience
			}
			h.fly(now, looking, limit, func(ctx context.Context) { h.lookAtQueue(ctx, look, limit) })
			h.last.until = now.Mono + beside // its connection may be dead
		}
	case takingBack:
		if batch := h.takebacks.Due(now.Mono, max(1, int(a.hold/backCost))); len(batch) > 0 {
			h.fly(now, takingBack, cutOff, func(ctx context.Context) { h.takeBackDue(ctx, batch) })
		}
	case signing: // sweeps for nothing that others would not do
		h.fly(now, signing, lookPatience, h.giveSign)
		return
	case sweeping:
		lately := sweptLately
		if h.left.Swap(false) {
			lately = sweepOn
		}
		h.worked.Store(false)
		h.sweepIn(sweepEvery)
		h.fly(now, sweeping, cutOff, func(ctx context.Context) {
			switch swept, more, _ := h.backend.Sweep(ctx, lately); {
			case !swept:
				h.sweepIn(sweepEvery + rand.N(othersSweep-sweepEvery))
			case more:
				h.sweepIn(sweepOn)
				h.left.Store(true)
			}
		})
		return
	default:
		if p := h.leases.take(now, a.kind, max(1, int(a.hold/renewCost))); len(p.leases) > 0 {
			h.fly(now, a.kind, p.limit, func(ctx context.Context) { h.renewAll(ctx, p, a.hold) })
		}
	}
	h.worked.Store(true)
}

func (h *heart) sweepIn(d time.Duration) { h.sweeps.Store(int64(h.now().Mono + d)) }

// fly sends a statement that should be answered within a limit. The next one waits for it, but not for long.
func (h *heart) fly(now trust.Instant, kind int, limit time.Duration, do func(ctx context.Context)) {
	f := &flight{kind, now.Mono, now.Mono + limit}
	h.last, h.underWay = f, append(h.underWay, f)
	h.flights.Go(func() {
		ctx, cancel := context.WithTimeout(h.flying, max(limit, cutOff))
		defer cancel()
		do(ctx)
		select {
		case h.landed <- f:
		case <-h.ctx.Done():
		}
	})
}

// wait waits until a statement has ended, a wake-up, or the end of d; false means the last.
func (h *heart) wait(d time.Duration) bool {
	select {
	case f := <-h.landed:
		h.underWay = slices.DeleteFunc(h.underWay, func(other *flight) bool { return other == f })
		if h.last == f {
			h.last = nil
		}
	case <-h.beatWake:
	case <-h.ctx.Done():
	case <-after(d):
		return false
	}
	return true
}

// lookAtQueue asks the server about the waiting calls, and gives each its answer.
func (c *Client) lookAtQueue(ctx context.Context, look *queue.Look, limit time.Duration) {
	c.mayBeKnown.Store(true)
	sent := c.now()
	who := c.who()
	who.TTL = look.Alive
	sightings, err := c.backend.Look(ctx, limit/2, who, look.Nested)
	if err != nil {
		c.queue.LookFailed(look, err, sent, c.now())
		return
	}
	c.leases.signed(sent.Mono-lookShows, nil)
	answered := c.calls.answeredUntil()
	if !c.takebacks.Empty() { // a ticket may be about to go
		answered = 0
	}
	c.takeBackStrays(ctx, c.queue.Looked(look, sightings, sent, c.now(), answered))
}

// watchDeadlines ends leases at their local deadline, even while the heartbeat hangs in a request.
func (c *Client) watchDeadlines() {
	for c.ctx.Err() == nil {
		expired, next, paused := c.leases.expired(c.now())
		if paused {
			signal(c.beatWake)
		}
		for _, l := range expired {
			_ = l.Err() // ends it
		}
		if len(expired) == 0 {
			c.sleep(c.ctx, next, c.deadlineWake)
		}
	}
}

// sleep waits until d has passed, wake, or the end of ctx or of the client.
func (c *Client) sleep(ctx context.Context, d time.Duration, wake chan struct{}) {
	select {
	case <-wake:
	case <-after(d):
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
}

// after is time.After, but of never it costs no timer.
func after(d time.Duration) <-chan time.Time {
	if d == never {
		return nil
	}
	return time.After(d)
}
