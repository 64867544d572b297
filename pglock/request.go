package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// outage is how long a waiting call tolerates an unreachable server.
	outage = queue.Outage
	// settling is how long TryAcquire tries to learn the fate of a request whose answer was lost.
	settling = 10 * time.Second
	// A request whose answer was lost is repeated after a pause, at first soon.
	firstAgain = 2 * time.Millisecond
	lastAgain  = 250 * time.Millisecond
	// lockedOutPause is the pause of a waiting call that finds the lock's row locked for long, or held by a lease of
	// its owner that has ended here.
	lockedOutPause = 100 * time.Millisecond
)

// request is what a caller wants, including what the server need not know.
type request struct {
	protocol.Request
	maxWait time.Duration // < 0: until ctx ends
	owner   *owner
	sight   *sight // nil: nobody observes
}

func (c *Client) newRequest(name string, opts []AcquireOption) (request, error) {
	r := request{maxWait: -1}
	r.Name, r.Holder, r.TTL, r.Grace, r.Mode, r.Session = name, c.config.holder, c.config.ttl, c.config.grace,
		string(ModeExclusive), c.who()
	if err := checkText("name", name, MaxNameBytes); err != nil {
		return request{}, err
	}
	for _, o := range opts {
		if o == nil {
			return request{}, errNilOption
		}
		if err := o(&r); err != nil {
			return request{}, err
		}
	}
	if err := checkSubtree(&r); err != nil {
		return request{}, err
	}
	return r, checkGrace(r.TTL, r.Grace)
}

// pending is one request with its grant ID. The ID is chosen before the first attempt and kept for every
// repetition, so that a request whose answer was lost yields the same grant or ticket. A repetition waits for
// the attempt before it (Retry). Only one goroutine uses it.
type pending struct {
	request
	queued bool          // it has a ticket
	lost   bool          // the answer of an attempt was lost; that attempt may still be under way
	taken  bool          // the server has said that the lock is not free, without a ticket
	told   trust.Instant // when the latest answer came
}

func (c *Client) newPending(ctx context.Context, r request) (*pending, error) {
	if ctx.Err() != nil {
		return nil, whyEnded(ctx)
	}
	if c.isClosed() {
		return nil, ErrClosed
	}
	var err error
	if r.owner == nil {
		if r.owner, err = ownerOf(ctx); err != nil {
			return nil, err
		}
	}
	q := &pending{request: r}
	q.Owner = r.owner.id
	q.GrantID, err = newGrantID()
	return q, err
}

// ask sends the request until it is answered, ctx or the client ends, or trying makes no sense. It passes on
// grants to others that the answer contains. An attempt still under way when the call ends is taken back
// (abandoned).
func (c *Client) ask(ctx context.Context, q *pending) (a protocol.Answer, err error) {
	asking, cancel := context.WithCancel(ctx) // a hanging request ends with the client too
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	var patience time.Time // its end; it starts with the first failure after an answer
	var failed error       // the last of these
	for delay := firstAgain; ; delay = min(2*delay, lastAgain) {
		q.Asked = c.now()
		q.Nested = q.owner.Nested()
		if q.Wait || q.Subtree {
			c.mayBeKnown.Store(true)
		}
		a, err = c.backend.Acquire(asking, q.Request)
		if server.AnswerLost(err) {
			q.Retry, q.lost = true, true
		}
		passes := protocol.State(err) == protocol.StateDeadlock && !q.owner.holds(q.Name) // its lease has ended here
		locked := passes || protocol.LockedOut(err)
		switch {
		case err == nil:
			q.Asked = q.Asked.Add(a.Waited)
			q.told = c.now()
			c.tellSoon(q.Name, a.Handed, new(q.Asked)) // a copy: q may be asked again meanwhile
			return a, nil
		case asking.Err() != nil || c.isClosed():
			end := c.endOfWait(ctx)
			if server.NeverSent(err) && !c.isClosed() && errors.Is(err, ctx.Err()) {
				end = ofWait(ctx, err)
			}
			before := errorFromSQL(failed, q.Name, 0) // what was cut may know less
			if before != nil && !c.isClosed() && !strings.Contains(end.Error(), before.Error()) {
				end = fmt.Errorf("%w; before that: %w", end, before)
			}
			return a, end
		case protocol.State(err) == protocol.StateSpentGrantID: // its grant has ended: begin anew
			if q.lost { // an attempt may arrive after others have had the lock: the server must still refuse it then
				c.takeBack(q.RequestID, true, q.TTL)
			}
			if q.GrantID, err = newGrantID(); err != nil {
				return a, err
			}
			q.Retry, q.lost = false, false
			patience, delay, failed = time.Time{}, firstAgain, nil
			continue
		case q.Metadata != nil && slices.Contains([]string{"22P02", "22P05", "22003"}, protocol.State(err)):
			return a, &ArgumentError{"metadata", argument.Shorten(string(q.Metadata)), "be a value that jsonb can " +
				"hold: " + protocol.Message(err)}
		case locked && q.Wait: // for as long as ctx; no connection is held meanwhile
			patience, delay = time.Time{}, firstAgain
			q.taken, q.told = true, c.now()
			failed = nil
			pause.For(asking, lockedOutPause)
			continue
		case passes, locked && !q.Retry: // for a second somebody has been deciding about the lock
			q.taken = true
			return protocol.Answer{}, nil
		case q.queued && protocol.ReadOnly(err): // its place survives: a primary will know it
		case server.NeverSent(err) && !q.Retry &&
			(!q.Wait || errors.Is(err, puddle.ErrClosedPool)), !protocol.ConnectionLost(err) && !locked:
			return a, q.refused(err)
		}
		failed = err
		if patience.IsZero() {
			patience = time.Now().Add(q.bears())
		}
		left := time.Until(patience)
		if left <= 0 {
			return a, q.refused(err)
		}
		// A program that stands still here asks once more, however late it is.
		if !pause.Exactly(asking, min(delay, left)) {
			if c.isClosed() {
				return a, ErrClosed
			}
			return a, fmt.Errorf("%w: %w", whyEnded(ctx), errorFromSQL(err, q.Name, 0))
		}
	}
}

// refused is the error of a request that is not sent again. What the server says of the lock, it says of an attempt
// whose answer was lost too; after any other error nobody knows what became of that.
func (q *pending) refused(err error) error {
	decided := strings.HasPrefix(protocol.State(err), "LK")
	if err = errorFromSQL(err, q.Name, 0); q.lost && !decided {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

// bears is how long the request tolerates an unreachable server.
func (q *pending) bears() time.Duration {
	if q.Wait {
		return outage
	}
	return min(settling, q.TTL)
}

// endOfWait returns why the wait has ended: because of the client, or of ctx.
func (c *Client) endOfWait(ctx context.Context) error {
	if c.isClosed() {
		return ErrClosed
	}
	return whyEnded(ctx)
}

// whyEnded is why ctx has ended: because of WithMaxWait, or of the caller's context.
func whyEnded(ctx context.Context) error {
	if waited, is := context.Cause(ctx).(*waitedError); is { //nolint:errorlint // of this call, and not of one outside
		return waited
	}
	return ctx.Err()
}

// ofWait is err, which has ended together with ctx, after the WithMaxWait that has ended both.
func ofWait(ctx context.Context, err error) error {
	if why := whyEnded(ctx); why != ctx.Err() { //nolint:errorlint // it matches
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}

// waitAtMost is ctx with a limit that the text of an error tells from the caller's own.
func waitAtMost(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, most, &waitedError{most})
}

// waitedError says that a call has waited for as long as WithMaxWait allows.
type waitedError struct{ most time.Duration }

func (e *waitedError) Error() string { return "waited " + e.most.String() + " in vain (WithMaxWait)" }

func (e *waitedError) Is(target error) bool { return target == context.DeadlineExceeded }
