package pglock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// hold is one wish that a lease last for longer than its TTL. The lease's mutex guards until and the place in
// lease.holds.
type hold struct {
	d     time.Duration
	until trust.Instant // the lease has to last until then; counted from the latest attempt
	done  chan struct{} // closed when the server has said that the lease lasts so long
}

func (h *hold) isDone() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// Extend makes the lease last for at least d from now on. The heartbeat goes on renewing the lease and does not shorten
// it, so the work of the next d does not depend on a renewal. The deadline, Valid and Context follow. Extend returns
// when the server has confirmed the extension. It needs no connection of the pool.
//
// Call end when the work is over. The heartbeat then sends a renewal at once, which takes the lease back to its TTL;
// end does not wait for it. If nobody calls end, the lease goes back when d has passed. A second call of end does
// nothing. Of several extensions the longest counts. If the server says later that it has lost the extension, as after
// a failover, the deadline comes sooner, and the heartbeat extends the lease again. If this process loses an extended
// lease, the client ends it on the server once its grace is over.
//
// Choose d with care: a holder that dies meanwhile keeps the lock until d has passed. d is from MinTTL to MaxTTL, less
// the grace of the lease.
//
// Errors: ErrInvalid (ArgumentError), ErrLost (LostError), ErrReleased, ErrClosed, or ctx's error and with it why the
// renewals failed.
func (l *Lease) Extend(ctx context.Context, d time.Duration) (end func(), err error) {
	if most := MaxTTL - l.grace; d < MinTTL || d > most {
		return nil, &ArgumentError{"extension", d.String(), fmt.Sprintf("be from %v to %v", MinTTL, most)}
	}
	h := &hold{d: d, done: make(chan struct{})}
	if !l.takeHold(h) {
		return nil, failure.At(ctx, cmp.Or(l.Err(), l.howEnded(), ErrReleased), "pglock: extend lock %q", l.name)
	}
	select {
	case <-h.done:
		return func() { l.dropHold(h) }, nil
	case <-l.life.Done():
		err = l.Err()
	case <-l.client.ctx.Done():
		err = ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
		l.mu.Lock()
		if l.failure != nil {
			err = fmt.Errorf("%w: the last renewal failed: %w", err, l.failure)
		}
		l.mu.Unlock()
	}
	l.dropHold(h)
	return nil, failure.At(ctx, err, "pglock: extend lock %q", l.name)
}

// takeHold makes the heartbeat extend the lease. It returns false if the lease has ended.
func (l *Lease) takeHold(h *hold) bool {
	if l.Err() != nil {
		return false
	}
	now := l.client.now()
	l.mu.Lock()
	l.holds = append(l.holds, h)
	l.due = now
	l.mu.Unlock()
	signal(l.client.beatWake)
	return true
}

// dropHold makes the heartbeat take the extension back, unless another hold needs it.
func (l *Lease) dropHold(h *hold) {
	now := l.client.now()
	l.mu.Lock()
	i := slices.Index(l.holds, h)
	wake := i >= 0 && h.d > l.ttl && h.until != (trust.Instant{}) && l.ended == nil
	if i >= 0 {
		l.holds = slices.Delete(l.holds, i, i+1)
	}
	if wake {
		l.tooLong, l.due = true, now
	}
	l.mu.Unlock()
	if wake {
		signal(l.client.beatWake)
	}
}

// renewal is one attempt to renew a lease.
type renewal struct {
	claim protocol.Claim
	lasts time.Duration // for how long the lease then lasts, without the grace
	holds []*hold       // that the server confirms with it
}

// renewal plans an attempt that is sent now. If the attempt makes the lease shorter on the server, renewal first makes
// the trust in the lease shorter.
func (l *Lease) renewal(now trust.Instant) renewal {
	r := renewal{claim: l.claim(), lasts: l.ttl}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.holds) == 0 && !l.tooLong {
		return r
	}
	l.holds = slices.DeleteFunc(l.holds, func(h *hold) bool { return h.isDone() && now.Reached(h.until) })
	for _, h := range l.holds {
		if !h.isDone() {
			h.until = now.Add(h.d)
			r.holds = append(r.holds, h)
		}
		r.lasts = max(r.lasts, now.Until(h.until))
	}
	if len(r.holds) > 0 || l.tooLong || l.tooShort {
		r.claim.Lasting = min(r.lasts+l.grace, MaxTTL)
	}
	if l.tooLong && !l.expiresAt.IsZero() {
		r.claim.NoLonger = l.expiresAt.UnixMicro()
		l.shrunk = now.Mono
		l.shorten(now, r.lasts)
	}
	return r
}

// renewed notes that the server has renewed the lease. The lease may have to be shortened on the server, because a
// request to extend it arrived late, or because the expiry to undo was unknown. Then renewed plans another renewal
// soon: the expiry is known now. It returns how long the lease had not been renewed.
func (l *Lease) renewed(r renewal, sent trust.Instant, v protocol.Verdict, sooner float64) (g gap) {
	now := l.client.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	g = l.gap(now)
	if l.ended != nil {
		return g
	}
	l.stillHeld(now)
	for _, h := range r.holds {
		if !h.isDone() {
			close(h.done)
		}
	}
	if sent.Mono < l.fresh { // a later request was answered before
		return g
	}
	if !v.ExpiresAt.IsZero() {
		l.expiresAt = v.ExpiresAt
	}
	l.failure, l.took = nil, now.Mono-sent.Mono
	l.tooLong = v.Remaining > l.needs(sent)+l.grace
	lasts := r.lasts
	if sent.Mono < l.shrunk { // what has made the lease shorter since may already have come through
		lasts = min(lasts, l.ttl)
	}
	l.trust(lasts, sent, v, sooner)
	l.heed(now, v.Remaining-l.grace)
	if l.tooLong || l.tooShort {
		l.due = now.Add(busyAgain)
	}
	return g
}

// heed makes the trust in the lease no longer than the server says now that it lasts, without the grace: a failover may
// have lost an extension that was confirmed, and a clock may have been set. Then the lease is extended again. The
// caller has the lease's mutex.
func (l *Lease) heed(now trust.Instant, left time.Duration) {
	l.shorten(now, left)
	l.tooShort = slices.ContainsFunc(l.holds, func(h *hold) bool {
		return h.isDone() && now.Until(h.until) > left+time.Second
	})
}

// shorten makes the trust in the lease end in that time at the latest. The caller has the lease's mutex.
func (l *Lease) shorten(now trust.Instant, left time.Duration) {
	if deadline := l.deadline.Earlier(trust.Deadline(now, left, left)); deadline != l.deadline {
		l.deadline = deadline
		signal(l.client.deadlineWake)
	}
}

// isExtended reports whether the lease may last for longer than its TTL on the server. The caller has the lease's
// mutex.
func (l *Lease) isExtended() bool {
	return l.tooLong || slices.ContainsFunc(l.holds, func(h *hold) bool { return h.until != (trust.Instant{}) })
}

// giveUp takes back a lease that is lost here and may go on for long on the server, where nobody could end it any more:
// as soon as its grace is over, unless the client is closed before.
func (l *Lease) giveUp() {
	c := l.client
	back := func() { c.takeBack(l.requestID(), l.strays, l.ttl) }
	if l.grace == 0 {
		back()
		return
	}
	c.calls.background(func() {
		if c.sleep(c.ctx, l.grace, nil); c.ctx.Err() == nil {
			back()
		}
	})
}

// needs is for how long the lease has to last from then on, without the grace. It adds a second to an extension,
// because two clocks place its end at slightly different moments. The caller has the lease's mutex.
func (l *Lease) needs(then trust.Instant) time.Duration {
	need := l.ttl
	for _, h := range l.holds {
		if h.until == (trust.Instant{}) {
			need = max(need, h.d+time.Second)
		} else {
			need = max(need, then.Until(h.until)+time.Second)
		}
	}
	return need
}

// isUrgent reports whether the next renewal is not for the TTL's sake. The caller has the lease's mutex.
func (l *Lease) isUrgent() bool {
	return l.tooLong || l.tooShort || slices.ContainsFunc(l.holds, func(h *hold) bool { return !h.isDone() })
}
