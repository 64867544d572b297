package pglock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/takeback"
)

// takeBack takes back, in the background, a request that nobody waits for any more. spend: an attempt may still
// be under way, and the server is to refuse it.
func (c *Client) takeBack(r protocol.RequestID, spend bool, ttl time.Duration) *takeback.Request {
	u := c.takebacks.Add(r, spend, ttl, c.now().Mono)
	signal(c.beatWake)
	return u
}

// abandoned takes back what the server granted to a call that had already left.
func (c *Client) abandoned(q protocol.Request, a protocol.Answer, err error) {
	if err == nil && (a.Granted || a.Ticket != 0) || server.AnswerLost(err) { // else nothing was done
		c.takeBack(q.RequestID, err != nil || q.Retry, q.TTL)
	}
	if err == nil {
		c.tell(context.WithoutCancel(c.ctx), q.Name, a.Handed, new(q.Asked.Add(a.Waited)))
	}
}

// endedLate passes on what a release granted whose call has left. When that was sent nobody knows any more, so a waiter
// of this client trusts its grant from when its ticket was last seen.
func (c *Client) endedLate(l protocol.Claim, e protocol.Ending, err error) {
	c.passOnLate(l.Name, l.Slot, e.Handed, err)
}

// handedLate is endedLate for a hand-over.
func (c *Client) handedLate(b protocol.Bequest, s protocol.Succession, err error) {
	if !b.Look {
		c.passOnLate(b.Name, 0, s.Handed, err)
	}
}

func (c *Client) passOnLate(name string, slot int, h protocol.Handed, err error) {
	switch ctx := context.WithoutCancel(c.ctx); {
	case err == nil:
		c.tell(ctx, name, h, nil)
	case server.AnswerLost(err):
		c.tellUnconfirmed(ctx, name, slot)
	}
}

// takeBackStrays takes back tickets that nobody waits for. If it fails, later looks find them again.
func (c *Client) takeBackStrays(ctx context.Context, tickets []int64) {
	if len(tickets) == 0 {
		return
	}
	known, err := c.backend.OwnTickets(ctx, c.who(), tickets)
	if err != nil {
		return
	}
	for _, r := range known {
		c.takeBack(r, false, 0)
	}
}

// takeBackDue sends a batch.
func (c *Client) takeBackDue(ctx context.Context, batch []*takeback.Request) {
	if rest, refused, err := c.takeBackAll(ctx, batch); err != nil {
		c.takebacks.Failed(rest, refused, len(batch), err, c.now().Mono)
	} else {
		c.takebacks.Succeeded()
	}
}

// takeBackAll takes back requests of one kind and passes on the resulting grants to others: also those of an attempt
// whose answer was lost. It returns what inHalves returns.
func (c *Client) takeBackAll(ctx context.Context, batch []*takeback.Request) (rest, refused []*takeback.Request,
	err error) {
	return inHalves(ctx, batch, func(batch []*takeback.Request) error {
		requests := make([]protocol.RequestID, len(batch))
		for i, u := range batch {
			requests[i] = u.RequestID
		}
		sent := c.now()
		backs, err := c.backend.TakeBack(ctx, c.who(), batch[0].Spend, requests)
		if err != nil {
			for _, u := range batch {
				u.Lost = u.Lost || server.AnswerLost(err)
			}
			return err
		}
		var others, unconfirmed announcement
		for i, u := range batch {
			if c.hear(u.Name, backs[i].Handed, &sent, &others); u.Lost {
				unconfirmed.Add(u.Name, []int{0}, false) // nobody knows the slot of a semaphore's
			}
			u.Done <- backs[i]
		}
		c.send(ctx, others, c.backend.AnnounceOwn)
		c.send(ctx, unconfirmed, c.backend.AnnounceUnconfirmed)
		return nil
	})
}

// inHalves does something for all requests at once. If the server refuses, because it would have to wait too
// long for a row, it tries each half, so that in the end only those fail that the server has refused alone, and the
// rest, for which ctx or the connection did not last. The next attempt begins with the rest: each row that somebody has
// locked may cost a second. A standby would refuse each half, too, and each refusal costs a connection; so would a
// server whose user lacks a right, or that has no such function.
func inHalves[T any](ctx context.Context, all []T, do func([]T) error) (rest, refused []T, err error) {
	switch err = do(all); {
	case err == nil:
		return nil, nil, nil
	case protocol.ConnectionLost(err) || protocol.ReadOnly(err) || ctx.Err() != nil:
		return all, nil, err
	case len(all) == 1 || slices.Contains([]string{"42501", "42883", "3F000"}, protocol.State(err)):
		return nil, all, err
	}
	rest1, refused1, err1 := inHalves(ctx, all[:len(all)/2], do)
	rest2, refused2, err2 := inHalves(ctx, all[len(all)/2:], do)
	return slices.Concat(rest1, rest2), slices.Concat(refused1, refused2), cmp.Or(err1, err2)
}
