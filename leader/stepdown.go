package leader

import (
	"context"
	"fmt"

	"github.com/pglock-dev/pglock/pglock"
)

// Resign asks the leader to stop its work, and returns when fn has returned and the lock is released. This candidate
// then campaigns again, at the end of the queue; if nobody else waits, it leads again at once. To leave for good end
// the ctx of Run.
//
// ctx bounds the wait alone: when it ends, the leader goes on stepping down. Do not call it from fn itself with fn's
// context, as it would wait for itself: return from fn instead.
//
// Errors: ErrNotLeading, pglock.ErrInvalid, ctx's error, or the error of the release (pglock.Lease.Release).
func (c *Candidate) Resign(ctx context.Context) error {
	return c.stepDown(ctx, "", ErrResigned, func(*pglock.Lease) error { return nil })
}

// HandOver makes the candidate with the label to (WithHolder) lead, whatever its place in the queue; the others keep
// their places. First it asks whether that candidate waits; if not, fn is not disturbed. Then fn's context ends with
// cause ErrHandOver; when fn has returned, the lock goes to the named candidate in one step (pglock.Lease.HandOver),
// and this one campaigns again, at the end of the queue.
//
// A named candidate that gives up while fn stops is not there any more: then fn is called again with the same lease,
// and this candidate goes on leading. One that has died within the last seconds may still count as alive
// (pglock.WithSessionTTL): it gets the lock, which nobody else has then until its TTL has passed.
//
// ctx bounds the question and the wait alone: when it ends, the hand-over goes on. As for Resign, do not call it with
// fn's context.
//
// Errors: pglock.ErrNoWaiter, when nobody waits under that label; ErrNotLeading; pglock.ErrInvalid; ctx's error; and
// what the hand-over failed with, after which this candidate campaigns again.
func (c *Candidate) HandOver(ctx context.Context, to string) error {
	return c.stepDown(ctx, to, ErrHandOver, func(lease *pglock.Lease) error { return lease.CanHandOver(ctx, to) })
}

// stepDown asks the leader to stop, unless may refuses that, and waits until it has given the lock up.
func (c *Candidate) stepDown(ctx context.Context, to string, why error, may func(*pglock.Lease) error) error {
	c.mu.Lock()
	lease := c.lease
	c.mu.Unlock()
	if lease == nil {
		return fmt.Errorf("lock %q: %w", c.name, ErrNotLeading)
	}
	if own, found := pglock.LeaseFromContext(ctx); found && own == lease {
		return &pglock.ArgumentError{Field: "ctx", Value: "the context of fn", Rule: "be another one: fn has to return first"}
	}
	if err := may(lease); err != nil {
		return err
	}
	w := &wish{to: to, done: make(chan error, 1)}
	c.mu.Lock()
	if c.lease != lease || c.wish != nil {
		c.mu.Unlock()
		return fmt.Errorf("lock %q: %w", c.name, ErrNotLeading)
	}
	c.wish = w
	c.stop(why)
	c.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("leader: wait for the leader of %q to step down: %w", c.name, ctx.Err())
	}
}
