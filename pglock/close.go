package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/takeback"
)

// sayAgain is the pause before a release or a hand-over is sent again.
const sayAgain = 20 * time.Millisecond

// standbyAgain is the pause before Close says again what a standby has refused: each refusal costs a connection.
const standbyAgain = 200 * time.Millisecond

// landing is how long Close waits for statements of the heartbeat and, after ctx, for the pool of Open.
const landing = 500 * time.Millisecond

// Close releases every lease, ends waiting calls with ErrClosed, and returns when every goroutine of the client
// has ended. It does not wait for writes of package fencedstore: their leases are released, so they fail or have
// committed. It talks to the server on any connection that it can get: its own, one of the pool, or a new one. It
// does so for as long as ctx allows: five seconds if ctx has already ended, as after a signal, or has no deadline. That
// ctx ends with a lease does not count. The error says what it could not tell the server: those leases run out by
// themselves, and places in queues end with the session. A second Close waits for the first, for as long as its
// own ctx allows. If Open made the client, Close then closes its pool. It waits for that for as long as ctx allows and
// half a second longer: on a connection that is silent pgx goes on for up to 15 s.
func (c *Client) Close(ctx context.Context) error {
	callers := ctx
	ctx, cancel := lastWords(ctx, never)
	defer cancel()
	if c.calls.close() {
		select {
		case <-c.gone:
			return nil
		case <-ctx.Done():
			return failure.At(callers, ctx.Err(), "pglock: close: another call is still closing the client")
		}
	}
	defer close(c.gone)
	leases := c.leases.close()
	c.cancel(ErrClosed)
	var held, strays []*Lease
	var spent []*takeback.Request // of the strays
	for _, l := range leases {
		if l.end(ErrReleased) {
			l.byClose.Store(true)
			if l.strays {
				strays, spent = append(strays, l), append(spent, c.takeBack(l.requestID(), true, l.ttl))
			} else {
				held = append(held, l)
			}
		}
	}
	close(c.ended)
	c.beats.Wait()
	asks, ends := make(chan struct{}), make(chan struct{})
	go func() { c.calls.asks.Wait(); close(asks) }()
	go func() { c.calls.ends.Wait(); close(ends) }()
	err := c.sayLast(ctx, held, asks, ends)
	for i, l := range strays {
		l.takenBack(ctx, spent[i], cmp.Or(err, ErrOutcomeUnknown))
	}
	c.backend.Close()
	<-asks
	<-ends
	c.calls.tasks.Wait()
	c.listener.Wait()
	if c.pool != nil {
		closePool(ctx, c.pool)
	}
	return failure.At(callers, errors.Join(err, c.observing.close()), "pglock: close")
}

// closePool closes the pool of Open. Pgx waits for the server's goodbye on a connection whose statement was cut off.
func closePool(ctx context.Context, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
		return
	case <-ctx.Done():
	}
	select {
	case <-closed:
	case <-time.After(landing):
	}
}

// lastWords bounds how long a release or a close talks to the server: as long as ctx allows, but no longer than
// most. Where a lease has ended ctx, that does not count: the call itself may have ended it.
func lastWords(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	over := ctx.Err() != nil
	if deadline, bounded := ctx.Deadline(); bounded && !over {
		most = min(most, time.Until(deadline))
	} else {
		most = min(most, parting)
	}
	talking, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	if over {
		return talking, cancel
	}
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) &&
			!failure.IsOneOf(context.Cause(ctx), ErrReleased, ErrLost) {
			cancel()
		}
	})
	return talking, func() {
		stop()
		cancel()
	}
}

// triedUntilItEnded is the error of what was tried again and again until ctx ended, or failed before: it says that ctx
// has ended, whatever the last attempt said.
func triedUntilItEnded(ctx context.Context, err error) error {
	if ended := ctx.Err(); err != nil && ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}

// sayLast tells the server what ends with the client: first the waits, so that none of them gets a lease; last
// whatever the calls and requests under way have brought.
func (c *Client) sayLast(ctx context.Context, held []*Lease, asks, ends <-chan struct{}) error {
	wait := func(done <-chan struct{}) {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	wait(asks)
	err := c.endAll(ctx, held)
	wait(ends)
	c.backend.Drain(ctx)
	c.land(ctx)
	err = errors.Join(err, c.endAll(ctx, nil))
	if c.mayBeKnown.Load() {
		_ = lastly(ctx, c.endSession) // if this fails, it ends by itself
	}
	return err
}

// land waits for the statements that the heartbeat has sent, so that none of them makes the session known again. It
// does not wait long for a connection that may be dead.
func (c *Client) land(ctx context.Context) {
	defer c.endFlights()
	ctx, cancel := context.WithTimeout(ctx, landing)
	defer cancel()
	defer context.AfterFunc(ctx, c.endFlights)()
	c.flights.Wait()
}

// endSession ends the session, unless there is no server, or only a standby: nobody waits for that.
func (c *Client) endSession(ctx context.Context) error {
	err := c.backend.EndSession(ctx, c.who())
	if server.NeverSent(err) || protocol.ReadOnly(err) {
		return nil
	}
	return err
}

// endAll takes back all abandoned requests, and releases leases that end with the client.
func (c *Client) endAll(ctx context.Context, held []*Lease) error {
	backs, leases := c.takebacks.All(), slices.Collect(slices.Chunk(held, takeback.Most))
	var all []func(context.Context) error
	for i := range backs {
		all = append(all, func(ctx context.Context) error {
			rest, refused, err := c.takeBackAll(ctx, backs[i])
			backs[i] = slices.Concat(rest, refused)
			return err
		})
	}
	for i := range leases {
		lost := false // the answer of an attempt
		all = append(all, func(ctx context.Context) error {
			rest, refused, err := inHalves(ctx, leases[i], func(batch []*Lease) error {
				err := c.releaseAll(ctx, batch, lost)
				lost = lost || server.AnswerLost(err)
				return err
			})
			leases[i] = slices.Concat(rest, refused)
			return err
		})
	}
	errs := lastly(ctx, all...)
	for i, err := range errs[len(backs):] {
		for _, l := range leases[i] {
			l.released(ctx, errorFromSQL(err, "", 0))
		}
	}
	return errors.Join(
		unended(backs, errs[:len(backs)], "%d requests could not be taken back; each ends with the session, or with "+
			"its TTL if it was granted: %w"),
		unended(leases, errs[len(backs):], "%d leases could not be released and end with their TTL: %w"))
}

// unended is the error of batches of which something is left, with the number of that and the first failure.
func unended[T any](batches [][]T, errs []error, format string) error {
	var failure error
	left := 0
	for i, err := range errs {
		if err != nil {
			left, failure = left+len(batches[i]), cmp.Or(failure, errorFromSQL(err, "", 0))
		}
	}
	if failure != nil {
		return fmt.Errorf(format, left, failure)
	}
	return nil
}

// releaseAll releases leases and passes on the resulting grants to others: also those of an attempt whose answer was
// lost.
func (c *Client) releaseAll(ctx context.Context, held []*Lease, lost bool) error {
	claims := make([]protocol.Claim, len(held))
	for i, l := range held {
		claims[i] = l.claim()
	}
	sent := c.now()
	endings, err := c.backend.ReleaseAll(ctx, claims)
	if err != nil {
		return err
	}
	var others, unconfirmed announcement
	for i, e := range endings {
		held[i].confirmed(ctx, e.Released, lost)
		if c.hear(claims[i].Name, e.Handed, &sent, &others); lost && !e.Released {
			unconfirmed.Add(claims[i].Name, []int{claims[i].Slot}, false)
		}
	}
	c.send(ctx, others, c.backend.AnnounceOwn)
	c.send(ctx, unconfirmed, c.backend.AnnounceUnconfirmed)
	return nil
}

// confirmed tells what the server said of the lease's end: whether this request has ended it. An earlier one may have
// done so where its answer was lost, and so may a hand-over that has no answer.
func (l *Lease) confirmed(ctx context.Context, ended, lost bool) {
	l.mu.Lock()
	own := lost || l.handing > 0
	l.mu.Unlock()
	switch {
	case ended:
		l.released(ctx, nil)
	case own:
		l.released(ctx, ErrOutcomeUnknown)
	default:
		l.released(ctx, &LostError{Lock: l.name, Token: l.token, Reason: ReasonUnknown})
	}
}

// takenBack is confirmed for a lease whose request was taken back; without an answer it tells err.
func (l *Lease) takenBack(ctx context.Context, u *takeback.Request, err error) {
	select {
	case back := <-u.Done:
		l.confirmed(ctx, back.Ended, u.Lost)
	default:
		l.released(ctx, err)
	}
}

// lastly says things to the server, each until the server has done it or ctx ends: like Release it also waits for
// whoever has locked a row, and repeats what the server undid for a passing reason. None waits for the repetition of
// another, except while no server, or a standby, answers: then each waits for the one before it. At first it gives up
// soon: the connection may have died since its last use.
func lastly(ctx context.Context, all ...func(context.Context) error) (errs []error) {
	deadline, _ := ctx.Deadline()
	most := time.Until(deadline)
	errs = make([]error, len(all))
	for limit := min(parting, most) / 4; ; limit = min(2*limit, most) {
		var again time.Duration // 0: nothing is left to say
		var err error           // of what was said last
		for i, say := range all {
			if say == nil {
				continue
			}
			attempt, cancel := context.WithTimeout(ctx, limit)
			err = say(attempt)
			away := protocol.ReadOnly(err) || protocol.ConnectionLost(err) && attempt.Err() == nil
			cancel()
			errs[i] = triedUntilItEnded(ctx, err)
			switch {
			case protocol.ReadOnly(err): // it may become the primary, or the next connection may lead to that
				again = standbyAgain
			case protocol.ConnectionLost(err) || protocol.Transient(err):
				again = max(again, sayAgain)
			default:
				all[i] = nil
			}
			if away { // the next would meet the same
				break
			}
		}
		if again > 0 && pause.For(ctx, again) {
			continue
		}
		for i, say := range all {
			if say != nil {
				errs[i] = triedUntilItEnded(ctx, cmp.Or(errs[i], err))
			}
		}
		return errs
	}
}
