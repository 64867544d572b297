package pglock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// outage is how long a waiting call bears a server that cannot be reached.
	outage = 30 * time.Second
	// settling is how long TryAcquire tries to learn what became of a request whose answer was lost.
	settling = 10 * time.Second
	// lockedOutPause is between two attempts of a waiting call that finds the lock's row locked for long.
	lockedOutPause = 100 * time.Millisecond
)

// request is what a caller wants.
type request struct {
	name     string
	holder   string
	ttl      time.Duration
	grace    time.Duration
	metadata json.RawMessage
	maxWait  time.Duration // < 0: until ctx ends
	mode     Mode
	capacity int // of ModeLimit
	wait     bool
	apart    bool // never shares a grant with other calls
	turns    int  // how many tokens the grant is to carry; 0 or 1: one
	owner    *owner
}

func (c *Client) newRequest(name string, opts []AcquireOption) (request, error) {
	r := request{name: name, holder: c.config.holder, ttl: c.config.ttl, grace: c.config.grace, maxWait: -1, mode: ModeExclusive}
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
	return r, checkGrace(r)
}

// asked is one request with its grant ID, which is chosen before it is sent for the first time and stays for every
// repetition, so that a request whose answer was lost yields the same grant or ticket. One goroutine uses it.
type asked struct {
	request
	grantID uuid.UUID
	queued  bool  // it was answered with a ticket
	again   bool  // an earlier attempt was sent: the next is to wait for it
	lost    bool  // the answer of an attempt was lost: that one may still be on its way
	line    *line // that it is the first of, or asks for
	byAgent bool  // the server does not know whose it is
}

func (c *Client) newAsked(ctx context.Context, r request) (*asked, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("pglock: acquire lock %q: %w", r.name, err)
	}
	if c.isClosed() {
		return nil, closedError(r.name)
	}
	var err error
	if r.owner == nil {
		if r.owner, err = ownerOf(ctx); err != nil {
			return nil, err
		}
	}
	q := &asked{request: r}
	q.grantID, err = newGrantID()
	return q, err
}

// named is the request as the protocol names it.
func (q *asked) named() protocol.Request { return protocol.Request{Name: q.name, GrantID: q.grantID} }

// ask sends the request until it is answered, ctx or the client ends, or trying makes no sense. What was granted to others
// on the way is told to them. What becomes of an attempt that is under way when the call ends is taken back (abandoned).
func (c *Client) ask(ctx context.Context, q *asked) (a protocol.Answer, sent trust.Instant, err error) {
	asking, cancel := context.WithCancel(ctx) // a request that hangs ends with the client too
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	var patience <-chan time.Time // starts with the first failure
	for delay := 2 * time.Millisecond; ; delay = min(2*delay, 250*time.Millisecond) {
		sent = c.now()
		if err = q.owner.makeKnown(asking); err == nil {
			a, err = c.backend.Acquire(asking, protocol.Ask{Request: q.named(), Session: c.who(), Holder: q.holder, TTL: q.ttl, Grace: q.grace,
				Metadata: q.metadata, Mode: string(q.mode), Capacity: q.capacity, Wait: q.wait, Turns: q.turns,
				Owner: q.owner.id, Nested: q.owner.Nested(), Retry: q.again})
		} else if protocol.ConnectionLost(err) {
			err = &coalesce.NotSentError{Err: err}
		}
		if server.AnswerLost(err) {
			q.again, q.lost = true, true
		}
		locked := protocol.LockedOut(err)
		switch {
		case err == nil:
			c.tellSoon(q.name, a.Handed, sent)
			return a, sent, nil
		case asking.Err() != nil || errors.Is(err, ErrClosed):
			return a, sent, c.endOfAsking(ctx, q)
		case protocol.State(err) == protocol.StateSpentGrantID: // nothing is left of it
			if q.grantID, err = newGrantID(); err != nil {
				return a, sent, err
			}
			q.again, q.lost = false, false
			continue
		case q.metadata != nil && slices.Contains([]string{"22P02", "22P05", "22003"}, protocol.State(err)):
			return a, sent, &ArgumentError{"metadata", argument.Shorten(string(q.metadata)), "be a value that jsonb can hold: " + protocol.Message(err)}
		case locked && q.wait: // for as long as ctx; no connection is held meanwhile
			pause.For(asking, lockedOutPause)
			continue
		case locked && !q.again: // somebody is being granted the lock, and has been for a second
			return protocol.Answer{}, sent, nil
		case server.NeverSent(err) && !q.again && !q.wait, !protocol.ConnectionLost(err) && !locked:
			return a, sent, fmt.Errorf("pglock: acquire lock %q: %w", q.name, errorFromSQL(err, q.name, 0))
		}
		if patience == nil {
			patience = time.After(q.bears())
		}
		select {
		case <-time.After(delay):
		case <-asking.Done():
			return a, sent, c.endOfAsking(ctx, q)
		case <-patience:
			if !q.lost {
				return a, sent, fmt.Errorf("pglock: acquire lock %q: %w", q.name, err)
			}
			return a, sent, fmt.Errorf("acquire lock %q: %w: %w", q.name, ErrOutcomeUnknown, err)
		}
	}
}

// bears is how long the request bears a server that cannot be reached.
func (q *asked) bears() time.Duration {
	if q.wait {
		return outage
	}
	return min(settling, q.ttl)
}

// endOfAsking says what has ended the asking: the client, or ctx.
func (c *Client) endOfAsking(ctx context.Context, q *asked) error {
	if c.isClosed() {
		return closedError(q.name)
	}
	return fmt.Errorf("pglock: acquire lock %q: %w", q.name, ctx.Err())
}

func closedError(name string) error { return fmt.Errorf("acquire lock %q: %w", name, ErrClosed) }
