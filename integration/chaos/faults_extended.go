//go:build unix

package main

import (
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/load"
)

var extendFaults = []fault{
	{name: "kill-extended", about: "a worker is killed while a lease of it is extended",
		lane: firstLane, weight: 2, choose: mortal, run: extendedAnd(kill)},
	{name: "pause-extended", about: "a worker stands still for longer than a TTL while a lease of it is extended",
		lane: firstLane, weight: 2,
		run: extendedAnd(pauseWithin)},
	{name: "refuse-extended",
		about: "a worker has no connections for longer than a TTL while a lease of it is extended",
		lane:  firstLane, weight: 2,
		run: extendedAnd(refuseWithin)},
}

// extension is for how long such a lease is extended: for longer than the other faults of a worker last.
const extension = 4 * time.Second

// extendedAnd has the worker extend a lease, and lets something happen to it then.
func extendedAnd(happens func(*hit) error) func(*hit) error {
	return func(h *hit) error {
		m := h.m.now()
		said, extended := m.next(history.Extended), false
		if m.tell(load.Order{Do: load.Extend, For: extension}) == nil {
			_, extended = m.await(h.ctx, said, 5*time.Second)
		}
		if err := happens(h); err != nil || extended {
			return err
		}
		return errNothing
	}
}

func pauseWithin(h *hit) error {
	if err := h.m.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	wait(h.ctx, between(h.rand, 600*time.Millisecond, extension))
	return h.m.signal(syscall.SIGCONT)
}

func refuseWithin(h *hit) error {
	restore := h.m.line.Refuse()
	h.m.line.Cut(true)
	wait(h.ctx, between(h.rand, 600*time.Millisecond, extension))
	return restore()
}
