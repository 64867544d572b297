//go:build unix

package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
	"github.com/pglock-dev/pglock/pglock"
)

var processFaults = []fault{
	{name: "pause", about: "a process stands still (SIGSTOP), mostly for longer than a TTL", lane: firstLane, weight: 5, run: pause},
	{name: "kill", about: "a process is killed (SIGKILL), and another comes in its place", lane: firstLane, weight: 2, run: kill},
}

var networkFaults = []fault{
	{name: "reset", about: "all connections of a worker are reset", lane: firstLane, weight: 2, run: cut(true)},
	{name: "close", about: "all connections of a worker are closed", lane: firstLane, weight: 2, run: cut(false)},
	{name: "refuse", about: "connections of a worker are reset, and new ones refused for up to two seconds", lane: firstLane, weight: 2, run: refuse},
	{name: "hold", about: "requests or answers of a worker are held back for up to two seconds, and come then", lane: firstLane, weight: 4, run: hold},
	{name: "drop-commit-request", about: "some requests to COMMIT are lost, and the connection is reset later", lane: firstLane, weight: 2, run: commits(wire.Up, true)},
	{name: "drop-commit-answer", about: "some answers to COMMIT are lost, and the connection is reset later", lane: firstLane, weight: 2, run: commits(wire.Down, true)},
	{name: "delay-commit-request", about: "some requests to COMMIT are late, by up to two seconds", lane: firstLane, weight: 4, run: commits(wire.Up, false)},
	{name: "delay-commit-answer", about: "some answers to COMMIT are late, by up to two seconds", lane: firstLane, weight: 2, run: commits(wire.Down, false)},
	{name: "late-hints", about: "notifications alone are late, by about a TTL; mostly all else of the worker is held back a little shorter", lane: firstLane, weight: 5, choose: nextToBeGranted, run: lateHints},
	{name: "terminate", about: "some sessions of a worker are terminated by an operator", lane: firstLane, weight: 2, run: terminate},
}

// shortTTLs are those that can run out within a fault.
var shortTTLs = []time.Duration{300 * time.Millisecond, 500 * time.Millisecond, time.Second, 1500 * time.Millisecond}

func (h *hit) someTTL() time.Duration { return shortTTLs[h.rand.IntN(len(shortTTLs))] }

func pause(h *hit) error {
	ttl := h.someTTL()
	if err := h.m.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	wait(h.ctx, between(h.rand, ttl/4, 2*ttl))
	return h.m.signal(syscall.SIGCONT)
}

func kill(h *hit) error {
	h.judge.Died(h.m.kill().who)
	wait(h.ctx, upTo(h.rand, time.Second))
	return h.m.start()
}

func cut(reset bool) func(*hit) error {
	return func(h *hit) error {
		h.m.line.Cut(reset)
		return nil
	}
}

func refuse(h *hit) error {
	restore := h.m.line.Refuse()
	h.m.line.Cut(true)
	wait(h.ctx, between(h.rand, 50*time.Millisecond, 2*time.Second))
	return restore()
}

func hold(h *hit) error {
	release := h.m.line.Hold(wire.Direction(h.rand.IntN(2)), h.rand.IntN(2) == 0)
	defer release()
	wait(h.ctx, between(h.rand, 50*time.Millisecond, 2*time.Second))
	return nil
}

func commits(d wire.Direction, drop bool) func(*hit) error {
	return func(h *hit) error {
		chance := rand.New(rand.NewPCG(h.rand.Uint64(), 0)) // the line has its own
		stop := h.m.line.OnCommit(wire.CommitFault{Direction: d, Drop: drop, By: between(h.rand, 50*time.Millisecond, 1800*time.Millisecond),
			Chance: func() bool { return chance.IntN(3) == 0 }})
		wait(h.ctx, between(h.rand, time.Second, 3*time.Second))
		stop()
		return nil
	}
}

// nextToBeGranted is a worker that is the next in the queue of a lock, or any where nobody is.
func nextToBeGranted(h *hit) *member {
	brief, cancel := context.WithTimeout(h.ctx, time.Second)
	defer cancel()
	waiters, err := h.eye.client.Waiters(brief, "", 1000)
	waiters = slices.DeleteFunc(waiters, func(w pglock.Waiter) bool {
		return w.Place > 1 || w.Mode != pglock.ModeExclusive || w.TTL > 2*time.Second || strings.HasPrefix(w.Lock, "storm")
	})
	if err == nil && len(waiters) > 0 {
		w := waiters[h.rand.IntN(len(waiters))]
		for _, m := range h.crew {
			if owns(label(m.now().who), w.Holder) {
				h.ttl = w.TTL
				return m
			}
		}
	}
	return h.crew[h.rand.IntN(len(h.crew))]
}

// lateHints lets a worker hear of a grant only when it has run out, and when the worker can ask again. What it was told is
// over by then.
func lateHints(h *hit) error {
	if h.ttl == 0 {
		h.ttl = h.someTTL()
	}
	standstill := h.ttl + 50*time.Millisecond + upTo(h.rand, h.ttl/2)
	undo := h.m.line.DelayHints(standstill + upTo(h.rand, 150*time.Millisecond))
	defer undo()
	if h.rand.IntN(4) != 0 {
		up, down := h.m.line.Hold(wire.Up, false), h.m.line.Hold(wire.Down, false)
		defer up()
		defer down()
	}
	wait(h.ctx, standstill)
	return nil
}

func terminate(h *hit) error {
	_, err := h.cluster.Terminate(h.ctx, label(h.m.now().who), 1+h.rand.IntN(4))
	if err != nil {
		return nil // there is no server just now
	}
	return nil
}
