package pglock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/protocol"
)

const (
	// giveUpMost is how many requests one statement takes back at most: some tens of milliseconds of the server's time.
	giveUpMost = 500
	// Where requests cannot be taken back, as while there is no server, that is tried again, soon at first.
	firstGiveUp = 20 * time.Millisecond
	lastGiveUp  = time.Second
	// giveUpFor is how long a refusal is borne, at least; without a server it is tried for as long as the client lives.
	giveUpFor = time.Minute
)

// giveUp is a request that nobody waits for any more: its ticket, or the grant that it has become, has to go. The heartbeat
// takes many back with one statement, on its own connection: one that every client has which waits.
type giveUp struct {
	name    string
	grantID uuid.UUID
	spend   bool // an attempt may still be on its way: the server is to refuse it
	until   time.Duration
	done    chan protocol.TakenBack // 1-buffered
}

// givingUp is what there is to take back. The client's mutex guards it.
type givingUp struct {
	ups   []*giveUp
	most  int           // in one statement; fewer after a failure
	delay time.Duration // after a failure
	next  time.Duration // on the monotonic clock
}

// giveUp takes a request back in the background. What comes of it goes over the channel of the answer.
func (c *Client) giveUp(q *asked) *giveUp {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	u := q.giveUp()
	u.until = now.Mono + max(q.ttl, giveUpFor)
	c.givingUp.ups = append(c.givingUp.ups, u)
	signal(c.beatWake)
	return u
}

func (q *asked) giveUp() *giveUp {
	return &giveUp{name: q.name, grantID: q.grantID, spend: q.lost, done: make(chan protocol.TakenBack, 1)}
}

// orphaned takes back what the server gave to a call that had left by then.
func (c *Client) orphaned(q protocol.Ask, a protocol.Answer, err error) {
	switch {
	case err == nil:
		c.tell(c.ctx, q.Name, a.Handed, c.now())
		if !a.Granted && a.Ticket == 0 {
			return
		}
	case !protocol.ConnectionLost(err):
		return // nothing was done
	}
	c.giveUp(&asked{request: request{name: q.Name, ttl: q.TTL}, grantID: q.GrantID, lost: err != nil || q.Retry})
}

// dueGiveUps takes what is to be taken back now, of one kind, and tells how long until the next attempt otherwise.
func (c *Client) dueGiveUps() (due []*giveUp, next time.Duration) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	g := &c.givingUp
	if len(g.ups) == 0 {
		return nil, never
	}
	if wait := g.next - now.Mono; wait > 0 {
		return nil, wait
	}
	spend := g.ups[0].spend
	rest := g.ups[:0]
	for _, u := range g.ups {
		if u.spend == spend && len(due) < g.most {
			due = append(due, u)
		} else {
			rest = append(rest, u)
		}
	}
	clear(g.ups[len(rest):])
	g.ups = rest
	return due, 0
}

// takeBack asks the server for a batch. What failed is put back. As a renewal, it is given up after a third of the shortest
// TTL: a connection that died silently leaves time for renewals on another.
func (c *Client) takeBack(ups []*giveUp, shortest time.Duration) {
	ctx, cancel := context.WithTimeout(c.ctx, min(shortest/3, patience))
	defer cancel()
	failed, err := c.takeBackAll(ctx, ups)
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	g := &c.givingUp
	if err == nil {
		g.most, g.delay = min(2*g.most, giveUpMost), 0
		return
	}
	if protocol.ConnectionLost(err) { // it may have been too much for the time that it had
		g.most = max(1, len(ups)/2)
	}
	g.delay = min(max(2*g.delay, firstGiveUp), lastGiveUp)
	g.next = now.Mono + g.delay
	for _, u := range failed {
		if protocol.ConnectionLost(err) || protocol.Transient(err) || now.Mono < u.until {
			g.ups = append(g.ups, u)
		}
	}
}

// takeBackAll takes requests of one kind back and tells what was granted to others thereby. What the server refuses for many,
// as it would have to wait for longer than a moment, is asked for half of them at a time.
func (c *Client) takeBackAll(ctx context.Context, ups []*giveUp) (failed []*giveUp, err error) {
	sent := c.now()
	requests := make([]protocol.Request, len(ups))
	for i, u := range ups {
		requests[i] = protocol.Request{Name: u.name, GrantID: u.grantID}
	}
	backs, err := c.backend.TakeBack(ctx, c.who(), ups[0].spend, requests)
	if err != nil {
		if len(ups) == 1 || protocol.ConnectionLost(err) || ctx.Err() != nil {
			return ups, err
		}
		first, err1 := c.takeBackAll(ctx, ups[:len(ups)/2])
		second, err2 := c.takeBackAll(ctx, ups[len(ups)/2:])
		return append(slices.Clip(first), second...), cmp.Or(err1, err2)
	}
	byName := make(map[string]protocol.Handed)
	for i, u := range ups {
		h := backs[i].Handed
		for _, text := range h.Hints {
			c.heard(text, &sent)
		}
		if len(h.Slots) > 0 || h.Watched {
			byName[u.name] = h
		}
		u.done <- backs[i]
	}
	announce(ctx, byName, c.backend.AnnounceOwn)
	return nil, nil
}

// lastly says what is to be said when the client closes, and again on a new connection where the heartbeat's has died since
// it was used.
func lastly(ctx context.Context, say func(context.Context) error) error {
	soon, cancel := context.WithTimeout(ctx, closeGrace/4)
	err := say(soon)
	cancel()
	if protocol.ConnectionLost(err) && ctx.Err() == nil {
		err = say(ctx)
	}
	return err
}

// takeBackLast takes back what there is when the client closes.
func (c *Client) takeBackLast(ctx context.Context, ups []*giveUp) error {
	var failure error
	left := 0
	for _, spend := range []bool{false, true} {
		kind := slices.DeleteFunc(slices.Clone(ups), func(u *giveUp) bool { return u.spend != spend })
		for batch := range slices.Chunk(kind, giveUpMost) {
			err := lastly(ctx, func(ctx context.Context) (err error) {
				batch, err = c.takeBackAll(ctx, batch)
				return err
			})
			if err != nil {
				left, failure = left+len(batch), cmp.Or(failure, err)
			}
		}
	}
	if failure != nil {
		return fmt.Errorf("pglock: close: %d requests could not be taken back: each ends with the session, or with the TTL if it was granted: %w", left, failure)
	}
	return nil
}
