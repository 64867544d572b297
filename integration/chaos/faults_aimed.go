//go:build unix

package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// waiting is a place at the front of a queue.
type waiting struct {
	lockadmin.Waiter
	behind int // how many wait behind it
}

// inFront picks a worker that is next in the queue of a lock whose lease soon runs out, with others behind it; or any
// worker, if there is none.
func inFront(h *hit) *member {
	var chosen *member
	h.until(time.Second, func(ctx context.Context) bool {
		tickets, err := lists.All(h.eye.admin.Waiters(ctx, lockadmin.WaitersQuery{}))
		if err != nil {
			return false
		}
		length := make(map[string]int)
		for _, t := range tickets {
			length[t.Lock]++
		}
		var front []waiting
		for _, t := range tickets {
			if t.Place == 1 && t.Mode == pglock.ModeExclusive && t.TTL <= 1500*time.Millisecond && t.Alive &&
				length[t.Lock] > 1 && !strings.HasPrefix(t.Lock, "storm") {
				front = append(front, waiting{t, length[t.Lock] - 1})
			}
		}
		// The sooner its lease runs out, the more likely its call still waits then.
		slices.SortStableFunc(front, func(a, b waiting) int {
			return cmp.Or(cmp.Compare(a.TTL, b.TTL), cmp.Compare(b.behind, a.behind))
		})
		front = front[:min(2, len(front))]
		if len(front) == 0 {
			return false
		}
		h.front = &front[h.rand.IntN(len(front))]
		for _, m := range h.crew {
			if owns(label(m.now().who), h.front.Holder) {
				chosen = m
			}
		}
		return chosen != nil
	})
	if chosen == nil {
		h.front = nil
		return h.crew[h.rand.IntN(len(h.crew))]
	}
	return chosen
}

// lateHints keeps a worker from the server until the lock that it waits for was granted to it and the grant has run
// out. Then it can ask again; the notification of the old grant arrives when it is queued anew. No connection is cut,
// so nothing tells the worker that it has missed something.
func lateHints(h *hit) error {
	hear := h.m.line.HoldHints()
	defer hear()
	up, down := h.m.line.Hold(wire.Up, false), h.m.line.Hold(wire.Down, false)
	defer up()
	defer down()
	again := false
	if h.front == nil {
		wait(h.ctx, between(h.rand, 200*time.Millisecond, time.Second))
	} else if h.granted(2*time.Second, func(label string) bool { return label == h.front.Holder }) {
		again = h.granted(h.front.TTL+500*time.Millisecond, func(label string) bool { return label != h.front.Holder })
		wait(h.ctx, upTo(h.rand, 20*time.Millisecond))
	}
	up()
	down()
	if again {
		h.queuedAgain(time.Second)
		wait(h.ctx, upTo(h.rand, 60*time.Millisecond))
		return nil
	}
	wait(h.ctx, upTo(h.rand, 150*time.Millisecond))
	return errNothing
}

// queuedAgain waits until the victim has another ticket for the lock than before.
func (h *hit) queuedAgain(patience time.Duration) {
	h.until(patience, func(ctx context.Context) bool {
		tickets, err := lists.All(h.eye.admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: h.front.Lock}))
		return err == nil && slices.ContainsFunc(tickets, func(t lockadmin.Waiter) bool {
			return t.Holder == h.front.Holder && t.Ticket > h.front.Ticket
		})
	})
}

// granted waits until the victim holds the lock, and reports whether it does.
func (h *hit) granted(patience time.Duration, meant func(label string) bool) bool {
	return h.until(patience, func(ctx context.Context) bool {
		holders, err := h.eye.admin.Holders(ctx, h.front.Lock)
		return err == nil && slices.ContainsFunc(holders, func(i pglock.LockInfo) bool {
			return i.Held && meant(i.Holder)
		})
	})
}

// until asks again and again, and reports whether it has become true in time.
func (h *hit) until(patience time.Duration, ask func(context.Context) bool) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) &&
		h.ctx.Err() == nil; wait(h.ctx, 15*time.Millisecond) {
		brief, cancel := context.WithTimeout(h.ctx, time.Second)
		done := ask(brief)
		cancel()
		if done {
			return true
		}
	}
	return false
}

// reader picks a worker that holds a lock together with others while a writer is next in its queue; or any worker, if
// there is none.
func reader(h *hit) *member {
	brief, cancel := context.WithTimeout(h.ctx, time.Second)
	defer cancel()
	tickets, _ := lists.All(h.eye.admin.Waiters(brief, lockadmin.WaitersQuery{}))
	for _, t := range tickets {
		if t.Place > 1 || t.Mode != pglock.ModeExclusive {
			continue
		}
		holders, _ := h.eye.admin.Holders(brief, t.Lock)
		for _, i := range holders {
			for _, m := range h.crew {
				if i.Held && i.Mode == pglock.ModeShared && i.TTL <= 1500*time.Millisecond &&
					owns(label(m.now().who), i.Holder) && h.rand.IntN(2) == 0 {
					h.ttl = i.TTL
					return m
				}
			}
		}
	}
	return h.crew[h.rand.IntN(len(h.crew))]
}
