//go:build unix

package main

import (
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/load"
)

var manyFaults = []fault{
	{name: "crowd", about: "a client keeps thousands of long leases, and beside them short ones of 100 to 300 ms " +
		"(--crowd)",
		lane: crowdLane, weight: 1, quiet: true, run: crowded},
	{name: "throng", about: "hundreds of clients ask for one lock at once (--throng)",
		lane: useLane, weight: 1, quiet: true, full: true, run: thronged},
}

// crowdTTL is that of the leases of a crowd.
const crowdTTL = 12 * time.Second

// crowded goes on while the other faults pause, so that losses can be seen that nothing else explains.
func crowded(h *hit) error {
	return h.orders(load.Order{Do: load.Crowd, N: h.crowd, TTL: crowdTTL,
		For: between(h.rand, 8*time.Second, 16*time.Second)}, history.Crowded)
}

// thronged may fill the server: each client has a connection of its own, and on a busy machine more.
func thronged(h *hit) error {
	return h.orders(load.Order{Do: load.Throng, N: h.throng, TTL: 1500 * time.Millisecond, For: 40 * time.Second},
		history.Thronged)
}

// orders tells the next worker to do something, and waits for it to say that it has. They take turns, so that what
// makes a process large comes to each of them early in a long run.
func (h *hit) orders(o load.Order, done history.Kind) error {
	m := h.nextFor(o.Do).now()
	said := m.next(done)
	if m.tell(o) != nil {
		return errNothing
	}
	if e, came := m.await(h.ctx, said, time.Minute); !came || e.Class != "" {
		return errNothing
	}
	return nil
}

func (l *lab) nextFor(order string) *member {
	l.turnsTaken.Lock()
	defer l.turnsTaken.Unlock()
	if l.turns == nil {
		l.turns = make(map[string]int)
	}
	n := l.turns[order]
	l.turns[order]++
	return l.crew[n%len(l.crew)]
}
