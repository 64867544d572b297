package pglock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/trust"
)

// leavePatience is how long a call whose context has ended waits to learn its place and who holds the lock. It
// leaves the queue in the background.
const leavePatience = 250 * time.Millisecond

// againPause is how long after an answer the client asks again because of a notification that says no more than that
// something may have changed. Every role may notify, as often as it likes.
const againPause = 10 * time.Millisecond

// waitInQueue waits for the grant of a request that has a ticket. The grant arrives as a hint. The call asks
// the server again only if the hint is missing or too late to be trusted, or, as the first in the queue, when
// the holder's lease ends.
func (c *Client) waitInQueue(ctx context.Context, q *pending, a protocol.Answer) (granted, error) {
	t := queue.NewTicket(q.owner, q.TTL, q.Mode == string(ModeExclusive))
	e := ear{c: c}
	defer e.open(false)
	defer c.queue.Remove(t)
	for busy := time.Millisecond; ; busy = min(2*busy, 100*time.Millisecond) {
		var g granted
		var hinted bool
		var err error
		if a.Ticket == 0 { // the lock had become free when the request joined: no ticket, and it may be granted now
			q.taken = true
			c.sleep(ctx, busy, nil)
		} else {
			q.Retry, q.queued = true, true
			c.waiting(&q.request, a)
			if c.queue.Put(t, q.GrantID, a, q.Asked, c.now()) {
				signal(c.beatWake)
			}
			c.calls.answered(q)
			g, hinted, err = c.await(ctx, q, t, &e)
		}
		if hinted {
			return g, nil
		}
		last := a
		if err == nil {
			c.calls.asksAgain(q, c.now())
			a, err = c.ask(ctx, q)
		}
		switch {
		case err != nil:
			return granted{}, c.leaveQueue(q, last, err)
		case a.Granted:
			return grantOf(a, q.Asked), nil
		}
	}
}

// ear is a call that may want notifications. Its goroutine alone uses it.
type ear struct {
	c     *Client
	wants bool
}

func (e *ear) open(wants bool) {
	switch {
	case wants && !e.wants:
		e.c.listener.Want(e.c.channel())
	case !wants && e.wants:
		e.c.listener.Unwant(e.c.channel())
	}
	e.wants = wants
}

// await blocks until a hint brings the grant, or an error ends the wait. Neither: ask the server. It holds no
// connection.
func (c *Client) await(ctx context.Context, q *pending, t *queue.Ticket, e *ear) (g granted, hinted bool, err error) {
	for {
		now := c.now()
		n, wait := c.queue.TakeNews(t, now)
		e.open(!c.queue.Rests(t))
		switch h := n.Hint; {
		case h != nil: // if it has little trust left, asking renews it
			left := now.Until(trust.Deadline(h.Seen, q.TTL, h.Left-q.Grace))
			return granted{token: h.Token, slot: h.Slot, left: h.Left, seen: h.Seen}, left >= q.TTL/2, nil
		case n.Circle != nil && (len(n.Circle) > 1 || n.Circle[0].Queued || q.owner.holds(q.Name)):
			return g, false, &DeadlockError{circleOf(n.Circle)}
		case n.Err != nil:
			return g, false, errorFromSQL(n.Err, q.Name, 0)
		case n.AskAgain, wait <= 0:
			if n.Heard {
				c.sleep(ctx, now.Until(q.told.Add(againPause)), nil)
			}
			return g, false, nil
		}
		c.sleep(ctx, wait, t.Wake)
		if ctx.Err() != nil || c.isClosed() {
			return g, false, c.endOfWait(ctx)
		}
	}
}

func circleOf(links []protocol.Link) []DeadlockLink {
	circle := make([]DeadlockLink, len(links))
	for i, l := range links {
		circle[i] = DeadlockLink(l)
	}
	return circle
}

// leaveQueue takes the request back and adds the lock's holder to the error that ended the wait. A grant that
// came at that moment goes to the next waiter. The call waits briefly for the answer; the request is taken back
// in any case.
func (c *Client) leaveQueue(q *pending, last protocol.Answer, err error) error {
	answered := last.Ticket != 0
	if !answered && !q.lost {
		return c.notGranted(q, last, 0, err)
	}
	u, age := c.takeBack(q.RequestID, q.lost, q.TTL), -c.now().Until(q.told)
	select {
	case back := <-u.Done:
		if back.Holder != "" {
			last.Holder, last.Token, last.ExpiresAt, last.By, age = back.Holder, back.Token, back.ExpiresAt, "", 0
		}
		last.Place = cmp.Or(back.Place, last.Place)
	case <-time.After(leavePatience):
	case <-c.ctx.Done():
	}
	return c.notGranted(q, last, age, err)
}

// notGranted adds the lock's holder, as of so long ago, to the error of a wait, if the server has said that the lock is
// not free.
func (c *Client) notGranted(q *pending, last protocol.Answer, age time.Duration, err error) error {
	if last.Holder == "" && last.Ticket == 0 && !q.taken {
		return err
	}
	held := c.heldError(last, q.Name)
	held.Age = age
	return fmt.Errorf("%w: %w", err, held)
}
