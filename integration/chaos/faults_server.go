//go:build unix

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/load"
	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

var serverFaults = []fault{
	{name: "crash", about: "the server is killed (SIGKILL, all its processes) and started again", lane: serverLane,
		weight: 3, run: crash},
	{name: "immediate", about: "the server is stopped immediately and started again", lane: serverLane, weight: 3,
		run: immediate},
	{name: "restart", about: "the server is stopped in the orderly way and started again", lane: serverLane, weight: 2,
		run: restart},
	{name: "stop-inside-write", about: "the server is stopped immediately while a write waits in its callback, and " +
		"is back when that returns", lane: serverLane, weight: 3, run: stopInsideWrite},
	{name: "slow-flush", about: "commits wait for a synchronous standby that stands still for about a second",
		lane: serverLane, weight: 3, standby: true, run: slowFlush},
	{name: "promote-lossy", about: "the primary is killed; a standby takes over that lacks the last commits",
		lane: serverLane, weight: 2, standby: true, run: failover(true)},
	{name: "promote-clean", about: "the primary is killed; a synchronous standby takes over", lane: serverLane,
		weight: 2, standby: true, run: failover(false)},
}

var useFaults = []fault{
	{name: "break", about: "an operator breaks leases, chosen at random", lane: useLane, weight: 4, quiet: true,
		run: breakLeases},
	{name: "prune", about: "an operator removes locks that have just become free", lane: useLane, weight: 2,
		quiet: true, run: prune},
	{name: "cancel", about: "a worker cancels thousands of waiting calls at once (--storm)", lane: useLane, weight: 1,
		quiet: true, run: cancelStorm},
}

func crash(h *hit) error { return h.cluster.Crash(h.ctx, upTo(h.rand, 800*time.Millisecond)) }
func immediate(h *hit) error {
	return h.cluster.Immediate(h.ctx, upTo(h.rand, 800*time.Millisecond), func() {})
}
func restart(h *hit) error { return h.cluster.Restart(h.ctx) }

// stopInsideWrite lets one worker write while all others are quiet, so that nothing makes the server flush that
// write. Then it stops the server, lets others work on the restarted server, and lets the write continue to its
// COMMIT.
func stopInsideWrite(h *hit) error {
	chosen := h.rand.IntN(len(h.crew))
	var releases []func()
	release := func() {
		for _, f := range releases {
			f()
		}
		releases = nil
	}
	defer release()
	for n, m := range h.crew {
		if n != chosen {
			releases = append(releases, m.line.Hold(wire.Up, true))
		}
	}
	wait(h.ctx, 60*time.Millisecond)
	m := h.crew[chosen].now()
	said := m.next(history.Inside)
	if m.tell(load.Order{Do: load.GoInside}) != nil {
		return errNothing // it has other troubles
	}
	if _, came := m.await(h.ctx, said, 1500*time.Millisecond); !came {
		return errNothing
	}
	if err := h.cluster.Immediate(h.ctx, upTo(h.rand, 200*time.Millisecond), release); err != nil {
		return err
	}
	h.over()
	wait(h.ctx, between(h.rand, 300*time.Millisecond, 1200*time.Millisecond))
	_ = m.tell(load.Order{Do: load.GoOn})
	return nil
}

func slowFlush(h *hit) error {
	if err := h.cluster.BuildStandby(h.ctx); err != nil {
		return err
	}
	return h.cluster.SlowFlush(h.ctx, between(h.rand, 300*time.Millisecond, 1600*time.Millisecond))
}

func failover(lossy bool) func(*hit) error {
	return func(h *hit) error {
		if err := h.cluster.BuildStandby(h.ctx); err != nil {
			return err
		}
		lines := []*wire.Line{h.eye.line}
		for _, m := range h.crew {
			lines = append(lines, m.line)
		}
		var restores []func() error
		err := h.cluster.Failover(h.ctx, lossy, between(h.rand, 200*time.Millisecond, 1500*time.Millisecond), func() {
			for _, l := range lines {
				restores = append(restores, l.Refuse())
				l.Cut(true)
			}
		}, func(p history.Promotion) {
			h.judge.Promoted(p)
			for _, l := range lines {
				l.LeadTo(h.cluster.Address())
			}
		})
		for _, restore := range restores {
			err = errors.Join(err, restore())
		}
		if err != nil {
			return err
		}
		h.over()
		return h.cluster.BuildStandby(h.ctx)
	}
}

func breakLeases(h *hit) error {
	look, err := h.eye.look(h.ctx)
	look.Holders = slices.DeleteFunc(look.Holders, func(x history.Holder) bool {
		return strings.Contains(x.Label, "+crowd") || strings.Contains(x.Label, load.Keeper)
	})
	if err != nil || len(look.Holders) == 0 {
		return errNothing // there is no server, or nothing to break
	}
	did := errNothing
	for range 1 + h.rand.IntN(3) {
		x := look.Holders[h.rand.IntN(len(look.Holders))]
		done := h.judge.Breaking(x.Name)
		_, err := h.eye.admin.Break(h.ctx, x.Name, "chaos", lockadmin.BreakOptions{Token: new(pglock.Token(x.Token))})
		if err == nil || errors.Is(err, lockadmin.ErrNotHeld) {
			done()
		}
		if err == nil {
			did = nil
		}
	}
	return did
}

func prune(h *hit) error {
	began := history.Now()
	var removed int
	err := h.eye.pool.QueryRow(h.ctx, fmt.Sprintf(`SELECT removed FROM pglock.prune_locks('%d ms')`,
		h.rand.IntN(300))).Scan(&removed)
	if err == nil { // otherwise there may be no server just now
		h.judge.Pruned(began, history.Now())
	}
	if removed == 0 {
		return errNothing
	}
	return nil
}

func cancelStorm(h *hit) error {
	return h.orders(load.Order{Do: load.Storm, N: h.stormCalls, TTL: 5 * time.Second}, history.Stormed)
}
