package pglock

import (
	"context"
	"fmt"
	"time"
)

// settle returns the lease of a request with a grace as soon as nobody can still believe in a lease that a
// failover has lost. A waiting call keeps the lease meanwhile, which is renewed; a call that does not wait
// gives it back.
func (c *Client) settle(ctx context.Context, q *pending, l *Lease) (*Lease, error) {
	for {
		since, changed, err := c.backend.Timeline(ctx)
		left := q.Grace - since
		switch {
		case err != nil:
			err = fmt.Errorf("pglock: acquire lock %q: %w", q.Name, errorFromSQL(err, q.Name, l.token))
		case !changed || left <= 0:
			return l, nil
		case !q.Wait:
			err = &HeldError{Name: q.Name, Grace: true, ExpiresAt: time.Now().Add(left).UTC()}
		default:
			err = c.sitOut(ctx, l, left)
		}
		if err != nil {
			_ = l.Release(ctx) // if this fails, it ends with its TTL
			return nil, err
		}
	}
}

// sitOut waits while the lease is held.
func (c *Client) sitOut(ctx context.Context, l *Lease, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-l.Context().Done():
		return l.Err()
	case <-ctx.Done():
		return fmt.Errorf("pglock: acquire lock %q: %w: %w", l.name, ctx.Err(),
			&HeldError{Name: l.name, Grace: true, ExpiresAt: time.Now().Add(d).UTC()})
	}
}
