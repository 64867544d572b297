package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// idle is how long the heartbeat keeps its connection when there is nothing to renew.
	idle = 30 * time.Second
	// wallClockLook is how often the watch looks at the wall clock, which timers do not follow.
	wallClockLook = time.Second
	// patience bounds one attempt to renew, however long the TTLs are: a lease that is granted meanwhile needs the
	// heartbeat too. It bounds every other statement as well.
	patience = 10 * time.Second
	// busyWait is how long the heartbeat waits at most for the row of one lease, which somebody has locked. No other lease
	// may be lost by that.
	busyWait = 30 * time.Millisecond
	// busyAgain is when it tries again.
	busyAgain = 10 * time.Millisecond
	// sweepEvery is how often a client with a heartbeat removes what nobody needs any more.
	sweepEvery = time.Minute
)

// never is the plan of a loop that waits for nothing but a wake-up.
const never = time.Duration(math.MaxInt64)

// beatMost is how many leases one statement renews at most: about a tenth of a second of the server's time.
const beatMost = 10_000

// sooner is the part of its interval by which a renewal comes earlier, from 0 to a tenth. It is drawn once for a beat: sessions
// spread out, and so do the beats of one that has more leases than one beat renews, while the leases of a beat stay together.
func sooner() float64 { return rand.Float64() / 10 }

// beatInterval is a third of the TTL, less a part of it.
func beatInterval(ttl time.Duration, sooner float64) time.Duration {
	third := ttl / 3
	return third - time.Duration(sooner*float64(third))
}

// heartbeat renews every lease of the client and looks after every call that waits, with one statement for all that is due,
// however much; then it takes back what nobody waits for any more.
func (c *Client) heartbeat() {
	swept := c.now().Mono - rand.N(sweepEvery)
	for c.ctx.Err() == nil {
		due, shortest, next, planned := c.dueLeases()
		look, nextLook := c.dueLook()
		ups, nextUp := c.dueGiveUps()
		if len(due) > 0 || look != nil {
			c.beat(due, shortest, look)
		}
		if len(ups) > 0 {
			c.takeBack(ups, shortest)
		}
		if len(due) > 0 || look != nil || len(ups) > 0 {
			if now := c.now().Mono; now-swept > sweepEvery {
				swept = now
				c.sweep(shortest)
			}
			continue
		}
		if min(next, nextLook, nextUp) == never && planned > idle {
			if !c.sleep(idle, c.beatWake) {
				c.backend.CloseOwn()
				c.sleep(less(planned, idle), c.beatWake)
			}
			continue
		}
		c.sleep(min(next, nextLook, nextUp, planned), c.beatWake)
	}
}

// sweep removes what dead sessions and old requests have left in the tables, a little of it.
func (c *Client) sweep(shortest time.Duration) {
	ctx, cancel := context.WithTimeout(c.ctx, min(shortest/6, time.Second))
	defer cancel()
	_ = c.backend.Sweep(ctx) // the next one does
}

// watchDeadlines ends leases at their local deadline, also while the heartbeat hangs in a request.
func (c *Client) watchDeadlines() {
	for c.ctx.Err() == nil {
		expired, next := c.expiredLeases()
		for _, l := range expired {
			_ = l.Err() // ends it
		}
		if len(expired) == 0 {
			c.sleep(next, c.deadlineWake)
		}
	}
}

// sleep waits until d has passed, wake, or the end of the client; true means wake.
func (c *Client) sleep(d time.Duration, wake chan struct{}) bool {
	var passed <-chan time.Time
	if d < never {
		timer := time.NewTimer(d)
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case <-passed:
		return false
	case <-wake:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// dueLeases are the leases to renew now, and the shortest TTL of all leases, due or not. When one is due, all of about its
// TTL are renewed with it, so that they come together whenever they were granted; of others, and where it is due again
// because its renewal has failed, those that would be due soon. With none due, it plans the next beat: planned is when to
// wake, next when a lease is due.
func (c *Client) dueLeases() (due []*Lease, shortest, next, planned time.Duration) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	shortest, next = MaxTTL, never
	var together time.Duration
	for l := range c.leases {
		l.mu.Lock()
		left, failed := now.Until(l.due), l.failure != nil
		l.mu.Unlock()
		shortest = min(shortest, l.ttl)
		if left < next {
			if next, together = left, 2*l.ttl; failed {
				together = 0
			}
		}
	}
	planned = min(next, c.queue.untilLook(now), stillTo(now, c.plannedBeat))
	c.plannedBeat = planAt(now, planned)
	if next > 0 {
		return nil, shortest, next, planned
	}
	for l := range c.leases {
		l.mu.Lock()
		left := now.Until(l.due)
		l.mu.Unlock()
		if l.ttl <= together || left <= l.ttl/12 {
			due = append(due, l)
		}
	}
	if len(due) > beatMost {
		slices.SortFunc(due, func(a, b *Lease) int { return cmp.Compare(a.dueAt(), b.dueAt()) })
		due = due[:beatMost]
	}
	return due, shortest, next, planned
}

func (l *Lease) dueAt() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.due.Mono
}

// expiredLeases are the leases whose local deadline has come; with none, it plans the next look.
func (c *Client) expiredLeases() (expired []*Lease, next time.Duration) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	next = never
	for l := range c.leases {
		l.mu.Lock()
		left := now.Until(l.deadline)
		l.mu.Unlock()
		next = min(next, left, wallClockLook)
		if left <= 0 {
			expired = append(expired, l)
		}
	}
	next = min(next, stillTo(now, c.plannedDeadline))
	c.plannedDeadline = planAt(now, next)
	return expired, next
}

// stillTo is how long until a plan; never when it has passed.
func stillTo(i trust.Instant, planned time.Duration) time.Duration {
	if planned <= i.Mono {
		return never
	}
	return less(planned, i.Mono)
}

// less takes d from a plan; never stays never.
func less(plan, d time.Duration) time.Duration {
	if plan == never {
		return never
	}
	return plan - d
}

func planAt(i trust.Instant, next time.Duration) time.Duration {
	if next == never {
		return never
	}
	return i.Mono + next
}

// beat asks the server to renew the leases and how the waiting calls stand, and gives each its verdict. An attempt is
// given up after a third of the shortest TTL of all leases, so that a connection that died silently leaves time for
// another; where calls wait, after a few seconds, and before the session counts as dead.
func (c *Client) beat(due []*Lease, shortest time.Duration, look *looking) {
	p := protocol.Beat{Claims: make([]protocol.Claim, len(due))}
	for i, l := range due {
		p.Claims[i] = l.claim()
	}
	limit := min(shortest/3, patience)
	if look != nil {
		c.nameOwners(look)
		p.Look, p.Nested, limit = true, look.nested, min(limit, lookPatience, c.config.sessionTTL/3)
	}
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	sent := c.now()
	verdicts, sightings, err := c.backend.Beat(ctx, c.who(), p)
	var strays []int64
	if look != nil {
		strays = c.looked(look, sightings, sent, err)
	}
	var busy []*Lease
	sooner := sooner()
	for _, l := range due {
		v, known := verdicts[l.claim()]
		l = c.current(l)
		switch {
		case err != nil:
			l.renewLater(fmt.Errorf("renew: %w", err))
		case !known:
			l.renewLater(errors.New("renew: the server did not answer for this lease"))
		case v.Outcome == protocol.Renewed:
			l.extend(sent, v, sooner)
		case v.Outcome == protocol.Busy:
			busy = append(busy, l)
		default:
			l.end(&LostError{Name: l.name, Token: l.token, Reason: Reason(v.Outcome)})
		}
	}
	c.renewBusy(busy, shortest)
	c.giveUpStrays(ctx, strays)
}

// nameOwners tells the server of the turns of owners that wait for other locks: one may have come while it waited. Not in the
// heartbeat's own time: it takes a connection of the pool.
func (c *Client) nameOwners(look *looking) {
	for _, w := range look.tickets {
		if o := w.owner; o.isNameless() {
			c.background(func() {
				ctx, cancel := context.WithTimeout(c.ctx, lookPatience)
				defer cancel()
				_ = o.makeKnown(ctx) // else with the next look
			})
		}
	}
}

// renewBusy renews one of the leases whose rows others had locked, waiting for it a little, and plans the others for soon: no
// lease waits for the row of another for longer than that.
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
	v, err := c.backend.RenewWaiting(ctx, l.claim(), min(shortest/12, busyWait))
	l = c.current(l)
	switch translated := ErrorFromSQL(err, l.name, l.token); {
	case err == nil:
		l.extend(sent, v, sooner())
	case errors.Is(translated, ErrLost):
		l.end(translated)
	default:
		l.renewAfter(busyAgain, fmt.Errorf("%w: %w", errBusy, err))
	}
}

var errBusy = errors.New("renew: the lock's row is locked by another transaction")

// renewLater plans the next attempt after a failure; the failure is told if the lease is lost before one succeeds.
func (l *Lease) renewLater(failure error) {
	l.renewAfter(min(l.ttl/20+rand.N(l.ttl/20), time.Second), failure)
}

func (l *Lease) renewAfter(d time.Duration, failure error) {
	now := l.client.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = failure
	l.due = now.Add(d)
}
