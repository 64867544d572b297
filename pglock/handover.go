package pglock

import (
	"context"
	"fmt"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
)

// HandOver ends the lease and, in the same step, grants the lock to a call that waits for it under the label to
// (WithHolder). If several such calls wait, the first in the queue gets the lock. Calls that queued before it keep
// their places, and the server serves them afterwards. You can hand over only an exclusive lease, and only to a call
// that asks for an exclusive one. A call counts unless a subtree above it is in its way or, if it is for a subtree,
// something below.
//
// A waiter behind the second place of a queue that has stood still for half a minute learns of the grant by its next
// look: up to a second later, and behind the eighth place up to a tenth of the time for which the queue has stood
// still, at most ten seconds.
//
// Stop the work first: until HandOver returns, the lease counts as valid here, and its next holder may already be at
// work. When the server has confirmed the hand-over, Context is done, with cause ErrReleased.
//
// HandOver talks to the server for as long as ctx allows and at most for the TTL. If ctx has ended or has no deadline,
// it takes up to five seconds. The server may hand the lock to a waiter that has died, if its session still counts as
// alive (WithSessionTTL): the lock then stays taken until that waiter's TTL has passed.
//
// Errors: ErrNoWaiter if nobody waits under that label: nothing has changed, and the lease goes on. ErrInvalid.
// ErrLost or ErrReleased if the lease had already ended. ErrOutcomeUnknown if no answer came after the request was
// sent: the server may have handed the lock over, and the lease ends here as soon as the heartbeat learns that. So it
// is if a later HandOver finds nobody, because the request may still arrive; or if Release or Close has ended the lease
// by the time of the next attempt. After any other error the server could not be reached, and the lease goes on.
func (l *Lease) HandOver(ctx context.Context, to string) error {
	if err := l.checkHandOver(to); err != nil {
		return err
	}
	if !l.client.calls.beginEnd() {
		<-l.client.ended // Close releases it
		return failure.Told(l.howEnded(), "pglock: hand over lock %q to %q", l.name, to)
	}
	defer l.client.calls.ends.Done()
	if err := l.Err(); err != nil {
		return failure.Told(err, "pglock: hand over lock %q to %q", l.name, to)
	}
	earlier := l.beginHanding()
	ctx, cancel := lastWords(ctx, l.ttl)
	defer cancel()
	for repeated := false; ; {
		sent := l.client.now()
		next, err := l.client.backend.HandOver(ctx, l.claim(), to, false)
		switch {
		case err == nil && (next.Outcome == protocol.HandedOver || repeated && next.Outcome == string(ReasonReleased)):
			first := l.end(ErrReleased)
			l.spend()
			l.released(ctx, nil)
			if l.client.tell(ctx, l.name, next.Handed, &sent); next.Outcome != protocol.HandedOver {
				l.client.tellUnconfirmed(ctx, l.name, l.slot)
			}
			if next.Outcome != protocol.HandedOver && (earlier || !first && l.endedByCall()) {
				err = fmt.Errorf("%w: another call may have ended the lease", ErrOutcomeUnknown)
				return failure.Told(err, "pglock: hand over lock %q to %q", l.name, to)
			}
			return nil
		case err == nil && (repeated || earlier) && next.Outcome == protocol.Nobody: // an attempt may be on its way
			l.endHanding(false)
			err = fmt.Errorf("%w: nobody waits now, but an earlier attempt may still arrive", ErrOutcomeUnknown)
			return failure.Told(err, "pglock: hand over lock %q to %q", l.name, to)
		case err == nil:
			l.endHanding(true)
			if err = l.notHandedOver(to, next.Outcome); repeated && next.Outcome == string(ReasonUnknown) {
				// as after a failover: perhaps by our own attempt
				err = failure.Told(fmt.Errorf("%w: %w", ErrOutcomeUnknown, l.howEnded()),
					"pglock: hand over lock %q to %q", l.name, to)
			}
			return err
		}
		repeated = repeated || protocol.ConnectionLost(err) && !server.NeverSent(err)
		passes := protocol.ConnectionLost(err) || protocol.LockedOut(err)
		if !passes || l.client.hasClosed(err) || !pause.For(ctx, sayAgain) {
			l.endHanding(!repeated)
			err = triedUntilItEnded(ctx, errorFromSQL(err, l.name, l.token))
			if repeated {
				err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
			}
			return failure.Told(err, "pglock: hand over lock %q to %q", l.name, to) // as in Release
		}
	}
}

// canHandOver asks the server whether a call waits under the label to, and changes nothing. It returns nil if HandOver
// would find one, and otherwise HandOver's error. ctx limits the call.
func (l *Lease) canHandOver(ctx context.Context, to string) error {
	if err := l.checkHandOver(to); err != nil {
		return err
	}
	var found protocol.Succession
	err := l.ask(ctx, "hand over", func(ctx context.Context) (err error) {
		found, err = l.client.backend.HandOver(ctx, l.claim(), to, true)
		return err
	})
	if err == nil && found.Outcome != protocol.HandedOver {
		err = l.notHandedOver(to, found.Outcome)
	}
	return err
}

func (l *Lease) checkHandOver(to string) error {
	if err := checkText("to", to, MaxHolderBytes); err != nil {
		return err
	}
	if l.mode != ModeExclusive {
		return &ArgumentError{"mode", string(l.mode), "be " + string(ModeExclusive)}
	}
	return nil
}

// notHandedOver returns the error for an outcome. If the server no longer knows the lease, it ends here too.
func (l *Lease) notHandedOver(to, outcome string) error {
	if outcome == protocol.Nobody {
		return failure.Told(ErrNoWaiter, "pglock: hand over lock %q to %q", l.name, to)
	}
	l.end(&LostError{Lock: l.name, Token: l.token, Reason: Reason(outcome)})
	return failure.Told(l.howEnded(), "pglock: hand over lock %q to %q", l.name, to)
}

// beginHanding notes that a hand-over is under way. Then a renewal may find the lease gone, because it was handed over.
// It reports whether an earlier call's may be, too.
func (l *Lease) beginHanding() (earlier bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handing++
	l.hopes++
	return l.handing > 1
}

// endHanding notes that a hand-over is not under way any more: it has changed nothing, or nobody knows. If the server
// did not know the lease meanwhile, that ends it.
func (l *Lease) endHanding(known bool) {
	l.mu.Lock()
	l.hopes--
	if known {
		l.handing--
	}
	doubt := l.doubt
	l.mu.Unlock()
	if doubt != nil {
		l.end(doubt)
	}
}

// endedByCall reports whether a call has ended the lease as released, and not the heartbeat, which has found that.
func (l *Lease) endedByCall() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended == ErrReleased && !l.handed
}
