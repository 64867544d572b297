//go:build unix

package main

import (
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
)

var processFaults = []fault{
	{name: "pause", about: "a process stands still (SIGSTOP), mostly for longer than a TTL", lane: firstLane, weight: 5,
		run: pause},
	{name: "kill", about: "a process is killed (SIGKILL), and another comes in its place", lane: firstLane, weight: 2,
		choose: mortal, run: kill},
}

var networkFaults = []fault{
	{name: "reset", about: "all connections of a worker are reset", lane: firstLane, weight: 2, run: cut(true)},
	{name: "close", about: "all connections of a worker are closed", lane: firstLane, weight: 2, run: cut(false)},
	{name: "refuse", about: "connections of a worker are reset, and new ones refused for up to two seconds",
		lane: firstLane, weight: 2, run: refuse},
	{name: "outage", about: "a worker has no connections for five to eight seconds: what became of its last COMMITs " +
		"stays unknown", lane: firstLane, weight: 2, run: outage},
	{name: "hold", about: "requests or answers of a worker are held back for up to two seconds, and come then",
		lane: firstLane, weight: 4, run: hold},
	{name: "drop-commit-request", about: "some requests to COMMIT are lost, and the connection is reset later",
		lane: firstLane, weight: 2, run: commits(wire.Up, true)},
	{name: "drop-commit-answer", about: "some answers to COMMIT are lost, and the connection is reset later",
		lane: firstLane, weight: 2, run: commits(wire.Down, true)},
	{name: "delay-commit-request", about: "some requests to COMMIT are late, by up to two seconds; mostly those of a " +
		"reader that a writer waits for", lane: firstLane, weight: 4, choose: reader, run: commits(wire.Up, false)},
	{name: "delay-commit-answer", about: "some answers to COMMIT are late, by up to two seconds", lane: firstLane,
		weight: 2, run: commits(wire.Down, false)},
	{name: "late-hints", about: "a worker stands still while it is granted a lock and the grant runs out, and hears " +
		"the notification a little later", lane: firstLane, weight: 9, choose: inFront, run: lateHints},
	{name: "delay-hints", about: "notifications to a worker are late, by up to four seconds, and nothing else",
		lane: firstLane, weight: 2, quiet: true, run: delayHints},
	{name: "terminate", about: "some sessions of a worker are terminated by an operator", lane: firstLane, weight: 2,
		run: terminate},
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

// mortal picks a worker that may be killed.
func mortal(h *hit) *member {
	for {
		if m := h.crew[h.rand.IntN(len(h.crew))]; !h.spared(m.n) {
			return m
		}
	}
}

func kill(h *hit) error {
	h.judge.Died(h.m.kill().who)
	wait(h.ctx, upTo(h.rand, time.Second))
	return h.m.start()
}

func cut(reset bool) func(*hit) error {
	return func(h *hit) error {
		if h.m.line.Cut(reset) == 0 {
			return errNothing
		}
		return nil
	}
}

func refuse(h *hit) error {
	restore := h.m.line.Refuse()
	h.m.line.Cut(true)
	wait(h.ctx, between(h.rand, 50*time.Millisecond, 2*time.Second))
	return restore()
}

// outage lasts longer than a write asks by itself what became of it. Just before, answers to COMMIT are lost.
func outage(h *hit) error {
	stop := h.m.line.OnCommit(wire.CommitFault{Direction: wire.Down, Drop: true, By: time.Second, Chance: func() bool {
		return true
	}})
	wait(h.ctx, between(h.rand, 100*time.Millisecond, 600*time.Millisecond))
	stop()
	restore := h.m.line.Refuse()
	h.m.line.Cut(true)
	wait(h.ctx, between(h.rand, 5*time.Second, 8*time.Second))
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
		f := wire.CommitFault{Direction: d, Drop: drop, By: between(h.rand, 50*time.Millisecond, 1800*time.Millisecond),
			Chance: func() bool {
				return chance.IntN(3) == 0
			}}
		if h.ttl > 0 { // a renewal arrives after the lease would have run out
			f.By, f.Chance = between(h.rand, h.ttl*3/4, h.ttl*5/4), func() bool { return true }
		}
		stop := h.m.line.OnCommit(f)
		wait(h.ctx, between(h.rand, time.Second, 3*time.Second))
		if stop() == 0 {
			return errNothing
		}
		return nil
	}
}

func delayHints(h *hit) error {
	hear := h.m.line.HoldHints()
	defer hear()
	wait(h.ctx, between(h.rand, 50*time.Millisecond, 4*time.Second))
	return nil
}

func terminate(h *hit) error {
	n, err := h.cluster.Terminate(h.ctx, label(h.m.now().who), 1+h.rand.IntN(4))
	if err != nil || n == 0 {
		return errNothing // there is no server just now, or no session
	}
	return nil
}
