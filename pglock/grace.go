package pglock

import (
	"context"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// settle returns the lease of a request with a grace as soon as nobody can still believe in a lease that a
// failover has lost. A waiting call keeps the lease meanwhile, which is renewed; a call that does not wait
// gives it back.
func (c *Client) settle(ctx context.Context, q *pending, l *Lease) (*Lease, error) {
	for {
		since, changed, err := c.timeline(ctx, q, l)
		left := q.Grace - since
		switch {
		case err != nil && ctx.Err() != nil:
			err = c.endOfWait(ctx)
		case err != nil && !l.Valid():
			err = c.endOf(l)
		case err != nil:
			err = errorFromSQL(err, q.Name, l.token)
		case !changed || left <= 0:
			return l, nil
		case !q.Wait:
			err = &HeldError{Lock: q.Name, Grace: true, ExpiresAt: time.Now().Add(left).UTC()}
		default:
			err = c.sitOut(ctx, l, left)
		}
		if err != nil {
			soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
			defer cancel()
			_ = l.Release(soon) // if the server does not answer soon, it is taken back in the background
			return nil, err
		}
	}
}

// timeline asks how long ago the server's timeline changed. While the lease is held it asks again, for as long as the
// request tolerates an unreachable server; a standby counts as that.
func (c *Client) timeline(ctx context.Context, q *pending, l *Lease) (since time.Duration, changed bool, err error) {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.Context(), cancel)()
	var failing time.Time // since when
	for delay := firstAgain; ; delay = min(2*delay, lastAgain) {
		since, changed, err = c.backend.Timeline(asking)
		if failing.IsZero() {
			failing = time.Now()
		}
		if !protocol.ConnectionLost(err) && !protocol.ReadOnly(err) || time.Since(failing)+delay > q.bears() ||
			!pause.Exactly(asking, delay) {
			return since, changed, err
		}
	}
}

// endOf is why a lease has ended that its call has not returned yet.
func (c *Client) endOf(l *Lease) error {
	if c.isClosed() {
		return ErrClosed
	}
	return l.Err()
}

// sitOut waits while the lease is held.
func (c *Client) sitOut(ctx context.Context, l *Lease, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-l.Context().Done():
		return c.endOf(l)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ctx.Err(),
			&HeldError{Lock: l.name, Grace: true, ExpiresAt: time.Now().Add(d).UTC()})
	}
}
