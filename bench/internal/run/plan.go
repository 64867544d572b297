// Package run has everything measured, in turns: in each repetition every peer, one after the other, the first another
// one each time, so that what the machine does meanwhile falls on all of them alike.
package run

import (
	"context"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/report"
)

// Options are what a run can be told.
type Options struct {
	Workloads   []peer.Workload
	Peers       []peer.Kind
	Repetitions int
	Duration    time.Duration // of one measurement of W1, W2 and W5
	Smoke       bool          // everything once, and short
}

// sizes are how much of everything there is.
type sizes struct {
	pairCallers  []int // W1
	waiters      []int // W2
	processes    int   // that they are spread over
	leases       []int // W3
	leaseTTL     time.Duration
	deaths       int // W4, in each repetition
	deathTTL     time.Duration
	writers      []int // W5
	warmUp       time.Duration
	serverWarmUp time.Duration
	afterHolding time.Duration // how long W4's holder is left alive, at least, and half as long again at most
}

func (o Options) sizes() sizes {
	if o.Smoke {
		return sizes{
			pairCallers: []int{8}, waiters: []int{8}, processes: 8, leases: []int{100}, leaseTTL: time.Second,
			deaths: 1, deathTTL: time.Second, afterHolding: 200 * time.Millisecond, writers: []int{4},
			warmUp: 50 * time.Millisecond, serverWarmUp: 100 * time.Millisecond,
		}
	}
	return sizes{
		pairCallers: []int{1, 8, 64}, waiters: []int{8, 64}, processes: 8, leases: []int{1000, 10000}, leaseTTL: 30 * time.Second,
		deaths: 3, deathTTL: 2 * time.Second, afterHolding: 600 * time.Millisecond, writers: []int{1, 16},
		warmUp: min(o.Duration, 400*time.Millisecond), serverWarmUp: 6 * time.Second,
	}
}

// step is one measurement, of one peer or of several at the same time.
type step struct {
	lines      []*report.Line // of the peers that take part
	kinds      []peer.Kind    // in the same order
	repetition int
	run        func(ctx context.Context, s step) error
}

// plan is all steps in their order. Its lines are made here, so that tables have them in the order of peers.
func (r *Runner) plan() []step {
	size := r.options.sizes()
	var steps []step
	for repetition := range r.options.Repetitions {
		one := func(w peer.Workload, where string, in func(peer.Kind) bool, run func(ctx context.Context, s step) error) {
			kinds := r.taking(w, in)
			var turns []step
			for _, k := range kinds {
				turns = append(turns, step{[]*report.Line{r.line(w, where, k)}, []peer.Kind{k}, repetition, run})
			}
			if len(turns) > 0 {
				first := repetition * len(turns) / max(1, r.options.Repetitions)
				steps = append(steps, slices.Concat(turns[first:], turns[:first])...)
			}
		}
		together := func(w peer.Workload, where string, in func(peer.Kind) bool, at int, run func(ctx context.Context, s step) error) {
			s := step{kinds: r.taking(w, in), repetition: at, run: run}
			for _, k := range s.kinds {
				s.lines = append(s.lines, r.line(w, where, k))
			}
			if len(s.kinds) > 0 {
				steps = append(steps, s)
			}
		}
		any := func(peer.Kind) bool { return true }
		for _, n := range size.pairCallers {
			one(peer.W1, report.Callers(n), any, func(ctx context.Context, s step) error { return r.pairs(ctx, s, n) })
		}
		for _, n := range size.waiters {
			one(peer.W2, report.Waiters(n, report.InOne), any, func(ctx context.Context, s step) error { return r.waits(ctx, s, n, 1) })
		}
		for _, n := range size.waiters {
			one(peer.W2, report.Waiters(n, report.Spread8), func(k peer.Kind) bool { return !k.OneProcess },
				func(ctx context.Context, s step) error { return r.waits(ctx, s, n, size.processes) })
		}
		for _, n := range size.leases {
			together(peer.W3, report.Leases(n), func(k peer.Kind) bool { return k.MostLeases == 0 || n <= k.MostLeases }, repetition,
				func(ctx context.Context, s step) error { return r.keeps(ctx, s, n) })
		}
		for n := range size.deaths {
			together(peer.W4, report.HolderDies, any, repetition*size.deaths+n, r.deaths)
		}
		for _, n := range size.writers {
			one(peer.W5, report.Callers(n), any, func(ctx context.Context, s step) error { return r.writes(ctx, s, n) })
		}
	}
	return steps
}

// taking are the peers that take part in a workload and whose server runs.
func (r *Runner) taking(w peer.Workload, in func(peer.Kind) bool) (kinds []peer.Kind) {
	if !slices.Contains(r.options.Workloads, w) {
		return nil
	}
	for _, k := range r.options.Peers {
		if slices.Contains(k.In, w) && in(k) && r.servers.Running[k.Server] != nil {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func (r *Runner) line(w peer.Workload, where string, k peer.Kind) *report.Line {
	return r.results.Line(report.Place{Workload: w, Where: where, Peer: k.Name})
}
