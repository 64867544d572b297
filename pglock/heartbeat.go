package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/queue"
)

const (
	// idle is how long the heartbeat keeps its connection without anything to renew.
	idle = 30 * time.Second
	// patience limits one attempt to renew, however long the TTLs are: a lease that is granted meanwhile needs the
	// heartbeat too.
	patience = protocol.Patience
	// busyWait is how long the heartbeat waits at most for one lease's row that somebody has locked. No other lease
	// may be lost by that.
	busyWait = 30 * time.Millisecond
	// busyAgain is when it tries again.
	busyAgain = 10 * time.Millisecond
	// lookPatience limits one look at the queue.
	lookPatience = 5 * time.Second
	// sweepEvery is how often a client with a heartbeat removes what nobody needs any more.
	sweepEvery = time.Minute
)

// sooner is the part of its interval by which a renewal comes earlier, from 0 to a tenth. It is drawn once per beat.
// So sessions spread out, and so do the beats of a session with more leases than one beat renews, while the leases of
// a beat stay together.
func sooner() float64 { return rand.Float64() / 10 }

// beatInterval is a third of the TTL, less a part of it.
func beatInterval(ttl time.Duration, sooner float64) time.Duration {
	third := ttl / 3
	return third - time.Duration(sooner*float64(third))
}

// heartbeat renews every lease of the client and looks after every waiting call, with one statement for all that is
// due; then it takes back what nobody waits for any more.
func (c *Client) heartbeat() {
	swept := c.now().Mono - rand.N(sweepEvery)
	for c.ctx.Err() == nil {
		now := c.now()
		due, shortest, next, planned := c.leases.due(now, c.queue.UntilLook(now))
		look, nextLook := c.queue.DueLook(now)
		batch, nextBack := c.takebacks.Due(now.Mono)
		if len(due) > 0 || look != nil {
			c.beat(due, shortest, look)
		}
		if len(batch) > 0 {
			c.takeBackDue(batch, shortest)
		}
		if len(due) > 0 || look != nil || len(batch) > 0 {
			if now := c.now().Mono; now-swept > sweepEvery {
				swept = now
				c.sweep(shortest)
			}
			continue
		}
		next = min(next, nextLook, nextBack)
		if next == never && planned > idle {
			if c.sleep(c.ctx, idle, c.beatWake) {
				continue
			}
			c.backend.CloseOwn()
			planned = less(planned, idle)
		}
		c.sleep(c.ctx, min(next, planned), c.beatWake)
	}
}

// sweep removes some of what dead sessions and old requests have left in the tables.
func (c *Client) sweep(shortest time.Duration) {
	ctx, cancel := context.WithTimeout(c.ctx, min(shortest/6, time.Second))
	defer cancel()
	_ = c.backend.Sweep(ctx) // if it fails, the next one does it
}

// watchDeadlines ends leases at their local deadline, even while the heartbeat hangs in a request.
func (c *Client) watchDeadlines() {
	for c.ctx.Err() == nil {
		expired, next := c.leases.expired(c.now())
		for _, l := range expired {
			_ = l.Err() // ends it
		}
		if len(expired) == 0 {
			c.sleep(c.ctx, next, c.deadlineWake)
		}
	}
}

// sleep waits until d has passed, wake, or the end of ctx or of the client; true means wake.
func (c *Client) sleep(ctx context.Context, d time.Duration, wake chan struct{}) bool {
	var passed <-chan time.Time
	if d < never {
		timer := time.NewTimer(d)
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case <-wake:
		return true
	case <-passed:
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// beat asks the server to renew the leases and to report on the waiting calls, and gives each its answer. It gives up
// an attempt after a third of the shortest TTL of all leases, so that a connection that died silently leaves time for
// another. With waiting calls it also gives up after a few seconds, and before the session counts as dead.
func (c *Client) beat(due []*Lease, shortest time.Duration, look *queue.Look) {
	b := protocol.Beat{Claims: make([]protocol.Claim, len(due))}
	limit := min(shortest/3, patience)
	if look != nil {
		c.partNested()
		c.nameOwners(look)
		b.Look, b.Nested, limit = true, look.Nested, min(limit, lookPatience, c.config.sessionTTL/3)
	}
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	sent := c.now()
	renewals := make([]renewal, len(due))
	for i, l := range due {
		renewals[i] = l.renewal(sent)
		b.Claims[i] = renewals[i].claim
	}
	verdicts, sightings, err := c.backend.Beat(ctx, c.who(), b)
	var strays []int64
	switch {
	case look != nil && err != nil:
		c.queue.LookFailed(look, err, sent, c.now())
	case look != nil:
		answered := c.calls.answeredUntil()
		if !c.takebacks.Empty() { // a ticket may be about to go
			answered = 0
		}
		strays = c.queue.Looked(look, sightings, sent, c.now(), answered)
	}
	var busy []*Lease
	var did tally
	sooner := sooner()
	for i, l := range due {
		v, known := verdicts[b.Claims[i]]
		l = c.current(l)
		switch {
		case err != nil:
			did.failed(l, l.renewLater(fmt.Errorf("renew: %w", err)))
		case !known:
			did.failed(l, l.renewLater(errUnanswered))
		case v.Outcome == protocol.Renewed:
			did.renewed(l, l.renewed(renewals[i], sent, v, sooner))
		case v.Outcome == protocol.Busy:
			busy = append(busy, l)
		default:
			l.end(&LostError{Name: l.name, Token: l.token, Reason: Reason(v.Outcome)})
		}
	}
	c.tellRenewals(c.observing.outside(), did, sent, cmp.Or(err, errUnanswered))
	c.renewBusy(busy, shortest)
	c.takeBackStrays(ctx, strays)
}

// nameOwners tells the server which turns belong to owners that wait for other locks, because a turn may have
// come while its owner waited. It runs in the background, since it takes a connection of the pool.
func (c *Client) nameOwners(look *queue.Look) {
	for _, w := range look.Owners() {
		if o := w.(*owner); o.isUnnamed() {
			c.calls.background(func() {
				ctx, cancel := context.WithTimeout(c.ctx, lookPatience)
				defer cancel()
				_ = o.makeKnown(ctx) // else with the next look
			})
		}
	}
}

// renewBusy renews one of the leases whose rows others had locked, waiting for it briefly, and plans the others for
// soon. So no lease waits longer than that for the row of another.
func (c *Client) renewBusy(busy []*Lease, shortest time.Duration) {
	if len(busy) == 0 {
		return
	}
	first := rand.N(len(busy))
	for i, l := range busy {
		if i != first {
			l.renewAfter(busyAgain, errBusy)
		}
	}
	l := busy[first]
	ctx, cancel := context.WithTimeout(c.ctx, min(shortest/3, patience))
	defer cancel()
	sent := c.now()
	r := l.renewal(sent)
	v, err := c.backend.RenewWaiting(ctx, r.claim, min(shortest/12, busyWait))
	l = c.current(l)
	var did tally
	switch translated := errorFromSQL(err, l.name, l.token); {
	case err == nil:
		did.renewed(l, l.renewed(r, sent, v, sooner()))
	case errors.Is(translated, ErrLost):
		l.end(translated)
	default:
		did.failed(l, l.renewAfter(busyAgain, fmt.Errorf("%w: %w", errBusy, err)))
	}
	c.tellRenewals(c.observing.outside(), did, sent, err)
}

var (
	errBusy       = errors.New("renew: the lock's row is locked by another transaction")
	errUnanswered = errors.New("renew: the server did not answer for this lease")
)

// renewLater plans the next attempt after a failure. The loss of the lease reports this failure if no attempt
// succeeds. It returns how long the lease has not been renewed.
func (l *Lease) renewLater(failure error) (gap time.Duration) {
	return l.renewAfter(min(l.ttl/20+rand.N(l.ttl/20), time.Second), failure)
}

func (l *Lease) renewAfter(d time.Duration, failure error) (gap time.Duration) {
	now := l.client.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = failure
	l.due = now.Add(d)
	return now.Mono - l.fresh
}
