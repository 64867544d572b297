package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/takeback"
)

// sayAgain is the pause before a release or a hand-over is sent again.
const sayAgain = 20 * time.Millisecond

// Close releases every lease, ends waiting calls with ErrClosed, and returns when every goroutine of the client
// has ended. It talks to the server on a connection outside the pool, so it works even if every connection of
// the pool is taken. It does so for as long as ctx allows: five seconds if ctx has already ended, as after a
// signal, or has no deadline. The error says what it could not tell the server: those leases run out by
// themselves, and places in queues end with the session. A second Close waits for the first, for as long as its
// own ctx allows. If Open made the client, Close then closes its pool.
func (c *Client) Close(ctx context.Context) error {
	ctx, cancel := lastWords(ctx, never)
	defer cancel()
	if c.calls.close() {
		select {
		case <-c.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("pglock: close: another call is still closing the client: %w", ctx.Err())
		}
	}
	defer close(c.gone)
	leases := c.leases.close()
	c.cancel(ErrClosed)
	var claims []protocol.Claim
	for _, l := range leases {
		if l.end(ErrReleased) {
			l.released(ctx, nil)
			claims = append(claims, l.claim())
		}
	}
	close(c.ended)
	c.beats.Wait()
	asks, ends := make(chan struct{}), make(chan struct{})
	go func() { c.calls.asks.Wait(); close(asks) }()
	go func() { c.calls.ends.Wait(); close(ends) }()
	err := c.sayLast(ctx, claims, asks, ends)
	c.backend.Close(ctx)
	<-asks
	<-ends
	c.calls.tasks.Wait()
	c.listener.Wait()
	if c.pool != nil {
		c.pool.Close()
	}
	return errors.Join(err, c.observing.close())
}

// lastWords bounds how long a release or a close talks to the server: as long as ctx allows, but no longer than
// most.
func lastWords(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		most = min(most, parting)
	}
	return context.WithTimeout(ctx, most)
}

// sayLast tells the server what ends with the client: first the waits, so that none of them gets a lease; last
// whatever the calls and requests under way have brought.
func (c *Client) sayLast(ctx context.Context, claims []protocol.Claim, asks, ends <-chan struct{}) error {
	wait := func(done <-chan struct{}) {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	wait(asks)
	failures := []error{c.takeBackLast(ctx), c.releaseLast(ctx, claims)}
	wait(ends)
	c.backend.Drain(ctx)
	failures = append(failures, c.takeBackLast(ctx))
	if c.listener.Started() { // the server knows the session
		_ = c.backend.EndSession(ctx, c.who()) // if this fails, it ends by itself
	}
	return errors.Join(failures...)
}

// releaseLast releases leases that end with the client.
func (c *Client) releaseLast(ctx context.Context, claims []protocol.Claim) error {
	var failure error
	left := 0
	for batch := range slices.Chunk(claims, takeback.Most) {
		err := lastly(ctx, func(ctx context.Context) (err error) {
			batch, err = inHalves(ctx, batch, func(batch []protocol.Claim) error { return c.releaseAll(ctx, batch) })
			return err
		})
		if err != nil {
			left, failure = left+len(batch), cmp.Or(failure, err)
		}
	}
	if failure != nil {
		return fmt.Errorf("pglock: close: %d leases could not be released and end with their TTL: %w", left, failure)
	}
	return nil
}

// releaseAll releases leases and passes on the resulting grants to others.
func (c *Client) releaseAll(ctx context.Context, claims []protocol.Claim) error {
	sent := c.now()
	endings, err := c.backend.ReleaseAll(ctx, claims)
	if err != nil {
		return err
	}
	var others announcement
	for i, e := range endings {
		c.hear(claims[i].Name, e.Handed, sent, &others)
	}
	c.send(ctx, others, c.backend.AnnounceOwn)
	return nil
}

// takeBackLast takes back all abandoned requests when the client closes.
func (c *Client) takeBackLast(ctx context.Context) error {
	var failure error
	left := 0
	for _, batch := range c.takebacks.All() {
		err := lastly(ctx, func(ctx context.Context) (err error) {
			batch, err = c.takeBackAll(ctx, batch)
			return err
		})
		if err != nil {
			left, failure = left+len(batch), cmp.Or(failure, err)
		}
	}
	if failure != nil {
		return fmt.Errorf("pglock: close: %d requests could not be taken back; each ends with the session, or with its TTL if it was granted: %w", left, failure)
	}
	return nil
}

// lastly sends a last statement. If the heartbeat's connection has died since its last use, it repeats the
// statement on a new one.
func lastly(ctx context.Context, say func(context.Context) error) error {
	deadline, _ := ctx.Deadline()
	soon, cancel := context.WithTimeout(ctx, min(parting, time.Until(deadline))/4)
	err := say(soon)
	cancel()
	if protocol.ConnectionLost(err) && ctx.Err() == nil {
		err = say(ctx)
	}
	return err
}
