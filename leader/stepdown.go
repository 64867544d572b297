package leader

import (
	"context"
	"errors"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Resign asks the leader to stop its work, and returns when fn has returned and the lock is released. This candidate
// then campaigns again, at the end of the queue; if nobody else waits, it leads again at once. To leave for good, end
// the ctx of Run.
//
// ctx limits only the wait: if it ends, the leader still steps down. Do not call Resign from fn with fn's context,
// because it would wait for itself: return from fn instead.
//
// Errors: ErrNotLeading, pglock.ErrInvalid, ctx's error, or the error of the release (pglock.Lease.Release).
func (c *Candidate) Resign(ctx context.Context) error {
	return c.stepDown(ctx, "", ErrResigned, func(*pglock.Lease) error { return nil })
}

// HandOver makes the candidate with the label to (WithHolder) lead, whatever its place in the queue; the others keep
// their places. First it asks whether that candidate waits; if not, it does not disturb fn. Then fn's context ends with
// cause ErrHandOver. When fn has returned, the lock goes to the named candidate in one step (pglock.Lease.HandOver),
// and this candidate campaigns again, at the end of the queue.
//
// If the named candidate gives up while fn stops, Run calls fn again with the same lease, and this candidate continues
// to lead. Status has the error of the call before. A candidate that died within the last seconds may still count as
// alive (pglock.WithSessionTTL). It then gets the lock, which stays taken until its TTL has passed.
//
// ctx limits only the question and the wait: if it ends after the question, the hand-over continues. As with Resign, do
// not call HandOver with fn's context.
//
// Errors: pglock.ErrNoWaiter if nobody waits under that label; ErrNotLeading, also if fn panics: the lock is then
// released, and not handed over; pglock.ErrInvalid; ctx's error; and the hand-over's failure, after which this
// candidate campaigns again.
func (c *Candidate) HandOver(ctx context.Context, to string) error {
	return c.stepDown(ctx, to, ErrHandOver, func(lease *pglock.Lease) error {
		return hooks.Of(lease).CanHandOver(ctx, to)
	})
}

// stepDown asks the leader to stop, unless may returns an error, and waits until the leader has given the lock up.
func (c *Candidate) stepDown(ctx context.Context, to string, why error, may func(*pglock.Lease) error) error {
	c.mu.Lock()
	lease := c.lease
	c.mu.Unlock()
	if lease == nil {
		return c.notLeading()
	}
	if own, found := pglock.LeaseFromContext(ctx); found && own == lease {
		return refuse.Invalid("ctx", "the context of fn", "be another one: fn has to return first")
	}
	if err := may(lease); ctx.Err() == nil && errors.Is(err, pglock.ErrReleased) { // somebody else asked first
		return c.notLeading()
	} else if err != nil {
		return err
	}
	w := &wish{to: to, done: make(chan error, 1)}
	c.mu.Lock()
	if c.lease != lease || c.wish != nil {
		c.mu.Unlock()
		return c.notLeading()
	}
	c.wish = w
	c.stop(why)
	c.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return failure.At(ctx, ctx.Err(), "leader: wait for the leader of %q to step down", c.name)
	}
}

func (c *Candidate) notLeading() error { return failure.Told(ErrNotLeading, "leader: lock %q", c.name) }
