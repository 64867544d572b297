package pglock

import (
	"context"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// A ticket that nobody waits for is granted to nobody in its turn, for as long as the session is alive. There is none but where
// the server has lost what it answered: a crash may lose the last moments in which requests were taken back, as these
// need not wait for the disk, and a failover to a standby that lacks them likewise.

// findStrays finds tickets that two looks in a row have told of and that no call has. One may belong to a call that has been
// asking since before the first of these looks, or to a request that waits to be taken back; then it stays for the next look.
// The mutex is held.
func (c *Client) findStrays(l *looking, found map[int64]protocol.Sighting, now trust.Instant) (strays []int64) {
	q := &c.queue
	seen := q.strays
	q.strays = nil
	for ticket := range found {
		if q.tickets[ticket] != nil || l.tickets[ticket] != nil {
			continue
		}
		since, again := seen[ticket]
		switch {
		case again && len(c.givingUp.ups) == 0 && !q.askingSince(since):
			strays = append(strays, ticket)
			continue
		case !again:
			since = now
		}
		if q.strays == nil {
			q.strays = make(map[int64]trust.Instant)
		}
		q.strays[ticket] = since
	}
	return strays
}

// askingSince reports whether a call has no ticket yet that came before the moment. The mutex is held.
func (q *queue) askingSince(moment trust.Instant) bool {
	if len(q.waiters) == len(q.tickets) {
		return false
	}
	for w := range q.waiters {
		if w.ticket == 0 && w.came.Mono <= moment.Mono {
			return true
		}
	}
	return false
}

// giveUpStrays takes tickets back that nobody waits for. What fails is found again by later looks.
func (c *Client) giveUpStrays(ctx context.Context, tickets []int64) {
	if len(tickets) == 0 {
		return
	}
	known, err := c.backend.OwnTickets(ctx, c.who(), tickets)
	if err != nil {
		return
	}
	for _, t := range known {
		c.giveUp(&asked{request: request{name: t.Name}, grantID: t.GrantID})
	}
}
