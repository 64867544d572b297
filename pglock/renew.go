package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// patience limits one attempt to renew, however long the TTLs are.
	patience = protocol.Patience
	// renewCost and backCost are about what a server needs for a renewal, and to take a request back.
	renewCost = 50 * time.Microsecond
	backCost  = 100 * time.Microsecond
	// laterMost bounds the shortest pause after a renewal that has failed; the longest is twice that.
	laterMost = 500 * time.Millisecond
	// busyWait is how long the heartbeat waits at most for one lease's row that somebody has locked. No other lease
	// may be lost by that.
	busyWait = 30 * time.Millisecond
	// busyAgain is when it tries again.
	busyAgain = 10 * time.Millisecond
)

// sooner is the part of its interval by which a renewal comes earlier, from 0 to a tenth. It is drawn once per
// statement. So sessions spread out, and so do the statements of a session, while the leases of one stay together.
func sooner() float64 { return rand.Float64() / 10 }

// beatInterval is a third of the TTL, less a part of it.
func beatInterval(ttl time.Duration, sooner float64) time.Duration {
	third := ttl / 3
	return third - time.Duration(sooner*float64(third))
}

// limitOf is how long an answer may take, for leases of which the one with this TTL ends first: half of the time left,
// so that the other half is there for another attempt, on another connection. Of a lease that is about to end it takes
// little notice: those that are renewed with it need the time.
func limitOf(left, ttl time.Duration) time.Duration {
	return min(max(left/2, ttl/holdsUp), patience)
}

// renewAll asks the server to renew leases, and gives each its answer, however late. hold is how long it may hold up
// others.
func (c *Client) renewAll(ctx context.Context, p piece, hold time.Duration) {
	c.mayBeKnown.Store(true)
	sent := c.now()
	renewals, claims := make([]renewal, len(p.leases)), make([]protocol.Claim, len(p.leases))
	var longest time.Duration
	for i, l := range p.leases {
		renewals[i] = l.renewal(sent)
		claims[i] = renewals[i].claim
		longest = max(longest, renewals[i].lasts)
	}
	who := c.who()
	who.Holds = holdsFor(longest)
	verdicts, err := c.backend.RenewAll(ctx, p.limit/2, who, claims)
	var busy []*Lease
	var did tally
	sooner, later := sooner(), rand.Float64()
	for i, l := range p.leases {
		v, known := verdicts[claims[i]]
		latest := l.answered(p.until)
		switch {
		case err == nil && known && v.Outcome == protocol.Renewed:
			did.renewed(l, l.renewed(renewals[i], sent, v, sooner))
		case err == nil && known && v.Outcome != protocol.Busy:
			l.end(&LostError{Lock: l.name, Token: l.token, Reason: Reason(v.Outcome)})
		case !latest: // it was asked for again, and perhaps renewed
		case err != nil:
			did.failed(l, l.renewLater(later, fmt.Errorf("renew: %w", err)))
		case !known:
			did.failed(l, l.renewLater(later, errUnanswered))
		default:
			busy = append(busy, l)
		}
	}
	c.tellRenewals(c.observing.outside(), did, sent, cmp.Or(err, errUnanswered))
	c.renewBusy(ctx, busy, hold)
}

// renewBusy renews one of the leases whose rows others had locked, waiting for it briefly, and plans the others for
// soon. So no lease waits longer than that for the row of another.
func (c *Client) renewBusy(ctx context.Context, busy []*Lease, hold time.Duration) {
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
	sent := c.now()
	limit := limitOf(l.stands(sent).end, l.ttl)
	until := sent.Add(limit * 9 / 8)
	l.asks(until)
	r := l.renewal(sent)
	v, err := c.backend.RenewWaiting(ctx, limit/2, r.claim, min(hold, busyWait))
	latest := l.answered(until)
	var did tally
	switch translated := errorFromSQL(err, l.name, l.token); {
	case err == nil:
		did.renewed(l, l.renewed(r, sent, v, sooner()))
	case errors.Is(translated, ErrLost):
		l.end(translated)
	case latest:
		did.failed(l, l.renewAfter(busyAgain, fmt.Errorf("%w: %w", errBusy, err)))
	}
	c.tellRenewals(c.observing.outside(), did, sent, err)
}

var (
	errBusy       = errors.New("renew: the lock's row is locked by another transaction")
	errUnanswered = errors.New("renew: the server did not answer for this lease")
	errSilent     = errors.New("renew: the server has not answered yet")
)

// renewLater plans the next attempt after a failure, after a twentieth to a tenth of the TTL, and at most a second:
// later, from 0 to 1, says where between. It is drawn once per statement, so that the leases of one stay together, and
// clients that fail at the same time do not come back at the same time. The loss of the lease reports this failure if
// no attempt succeeds. It returns how long the lease has not been renewed.
func (l *Lease) renewLater(later float64, failure error) (gap time.Duration) {
	soonest := min(l.ttl/20, laterMost)
	return l.renewAfter(soonest+time.Duration(later*float64(soonest)), failure)
}

func (l *Lease) renewAfter(d time.Duration, failure error) (gap time.Duration) {
	now := l.client.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = failure
	l.due = now.Add(d)
	return now.Mono - l.fresh
}

// asks notes that the server is asked to renew the lease. If it has not answered then, it is asked again.
func (l *Lease) asks(until trust.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked != (trust.Instant{}) {
		l.failure = errSilent
	}
	l.asked = until
}

// answered notes that the server has answered, or will not. It reports whether it was not asked again since.
func (l *Lease) answered(until trust.Instant) (latest bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if latest = l.asked == until; latest {
		l.asked = trust.Instant{}
	}
	return latest
}

// standing is how a lease stands at one moment. Its times are from then.
type standing struct {
	due    time.Duration // until the next renewal
	end    time.Duration // until it is too late
	asked  bool          // the server may still answer in time
	urgent bool          // the last renewal has failed, or the next is not for the TTL's sake
	sign   time.Duration // until the client should give a sign of life for it; never: a renewal will be one in time
}

// stands says how the lease stands. While the server is asked to renew it, the next renewal is due when an answer is
// late.
func (l *Lease) stands(now trust.Instant) standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	due, asked := now.Until(l.due), now.Until(l.asked)
	// An extended lease has a late deadline, and something to do before it.
	end := min(now.Until(l.deadline), due+l.ttl*2/3)
	due = max(due, asked)
	sign := l.fresh + signEvery - now.Mono
	urgent := l.isUrgent()
	if due <= sign {
		sign = never
		if !urgent && l.deadline.Mono-now.Mono > rowStays {
			sign = 0
		}
	}
	return standing{due, end, asked > 0, l.failure != nil || urgent, sign}
}
