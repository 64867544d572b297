// Package run measures everything in turns: in each repetition every peer, one after the other, beginning with a
// different one each time, so that disturbances of the machine affect all of them alike.
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
	Forms       []string // by their short names; all of the workloads for none
	Repetitions int
	Duration    time.Duration // of one measurement of all but W3, W4 and most of W8
	Smoke       bool          // everything once, and short
}

// sizes are how much of everything there is.
type sizes struct {
	pairCallers  []int // W1
	waiters      []int // W2, in one process
	spread       []int // W2, over so many processes:
	processes    int
	alone        []int // W1 and W2: processes of one caller each
	leases       []int // W3
	leaseTTL     time.Duration
	deaths       int // W4, in each repetition
	deathTTL     time.Duration
	writers      []int // W5
	beside       []int // W7: processes of one caller each, beside so many
	tickets      int   // of others
	crowd        crowd // W8
	warmUp       time.Duration
	serverWarmUp time.Duration
	afterHolding time.Duration // how long W4's holder is left alive, at least, and half as long again at most
}

// crowd is how many W8 has.
type crowd struct {
	resting    int // clients at rest
	lasts      time.Duration
	handing    int           // processes of one caller that hand a lock over
	beside     int           // so many clients that wait for
	locks      int           // others
	settles    time.Duration // how long it takes until all of them rest
	starting   int           // clients that start at once
	goroutines int           // of one client that ask at once
	processes  int           // that the clients are spread over
}

func (o Options) sizes() sizes {
	if o.Smoke {
		return sizes{
			pairCallers: []int{8}, waiters: []int{8}, spread: []int{16}, processes: 8, alone: []int{4},
			leases: []int{100}, leaseTTL: time.Second,
			deaths: 1, deathTTL: time.Second, afterHolding: 200 * time.Millisecond, writers: []int{4},
			beside: []int{2}, tickets: 200,
			crowd: crowd{resting: 20, lasts: 100 * time.Millisecond, handing: 2, beside: 20, locks: 2, starting: 8,
				goroutines: 200, processes: 2},
			warmUp: 50 * time.Millisecond, serverWarmUp: 100 * time.Millisecond,
		}
	}
	return sizes{
		pairCallers: []int{1, 8, 64}, waiters: []int{8, 64}, spread: []int{64}, processes: 8, alone: []int{1, 8, 64},
		leases: []int{1000, 10000}, leaseTTL: 30 * time.Second,
		deaths: 3, deathTTL: 2 * time.Second, afterHolding: 600 * time.Millisecond, writers: []int{1, 16},
		beside: []int{1, 8}, tickets: 10000,
		crowd: crowd{resting: 1000, lasts: 10 * time.Second, handing: 8, beside: 500, locks: 10,
			settles: 120 * time.Second, starting: 64, goroutines: 10000, processes: 10},
		warmUp: min(o.Duration, 400*time.Millisecond), serverWarmUp: 6 * time.Second,
	}
}

// step is one measurement, of one peer or of several at the same time.
type step struct {
	lines      []*report.Line // of the peers that take part
	kinds      []peer.Kind    // in the same order
	repetition int
	run        func(r *Runner, ctx context.Context, s step) error
}

// plan is all steps in their order. Its lines are made here, so that tables have them in the order of peers.
func (r *Runner) plan() (steps []step) {
	for repetition := range r.options.Repetitions {
		for _, f := range r.options.forms() {
			if f.once && repetition > 0 {
				continue
			}
			if f.together {
				steps = append(steps, r.atOnce(f, repetition)...)
			} else {
				steps = append(steps, r.inTurns(f, repetition)...)
			}
		}
	}
	return steps
}

// inTurns measures one peer after the other; each repetition begins with a different one.
func (r *Runner) inTurns(f form, repetition int) []step {
	var turns []step
	for _, k := range r.taking(f) {
		turns = append(turns, step{[]*report.Line{r.line(f, k)}, []peer.Kind{k}, repetition, f.run})
	}
	first := repetition * len(turns) / r.options.Repetitions
	return slices.Concat(turns[first:], turns[:first])
}

// atOnce has all peers measured at the same time, as often as the form says.
func (r *Runner) atOnce(f form, repetition int) (steps []step) {
	s := step{kinds: r.taking(f), run: f.run}
	for _, k := range s.kinds {
		s.lines = append(s.lines, r.line(f, k))
	}
	for n := range f.times {
		s.repetition = repetition*f.times + n
		if len(s.kinds) > 0 {
			steps = append(steps, s)
		}
	}
	return steps
}

// taking are the peers that take part in a form and whose server runs.
func (r *Runner) taking(f form) (kinds []peer.Kind) {
	for _, k := range r.options.Peers {
		if slices.Contains(k.In, f.workload) && f.takes(k) && r.servers.Running[k.Server] != nil {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func (r *Runner) line(f form, k peer.Kind) *report.Line {
	return r.results.Line(report.Place{Workload: f.workload, Where: f.where, Peer: k.Name})
}
