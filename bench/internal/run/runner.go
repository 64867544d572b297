package run

import (
	"context"
	"errors"
	"fmt"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/report"
	"github.com/pglock-dev/pglock/bench/internal/server"
)

// Runner has the steps of a run done.
type Runner struct {
	options  Options
	servers  *server.Set
	own      map[string]*server.Running // PostgreSQL servers: W3's by their peers, and those of workloads by these
	results  *report.Results
	progress *Progress
	runs     int // measurements so far; no two use the same lock names
}

// New makes a runner over servers that run; they stay the caller's.
func New(o Options, servers *server.Set, results *report.Results, p *Progress) *Runner {
	return &Runner{options: o, servers: servers, own: make(map[string]*server.Running), results: results, progress: p}
}

// Run does all steps. It records a failed measurement as failed, and continues; the error then is ErrIncomplete.
func (r *Runner) Run(ctx context.Context) (err error) {
	defer func() {
		for _, s := range r.own {
			err = errors.Join(err, s.Stop())
		}
	}()
	r.progress.Say("warming the servers up")
	if err := r.warmServers(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.progress.Say("%v", err) // who cannot be measured is told below
	}
	steps := r.plan()
	failed := 0
	for i, s := range steps {
		r.progress.Begins(i+1, len(steps), s, r.options.Repetitions)
		err := s.run(r, ctx, s)
		for tries := 1; errors.Is(err, errLate) && tries < mostTries; tries++ {
			r.progress.Say("  %v: again", err)
			err = s.run(r, ctx, s)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			failed++
			s.lines[0].Failed = append(s.lines[0].Failed, err.Error())
		}
		r.progress.Ended(s, err)
	}
	if failed > 0 {
		return fmt.Errorf("%w: %d of %d", ErrIncomplete, failed, len(steps))
	}
	return nil
}

// ErrIncomplete says that some measurements failed; the results tell which.
var ErrIncomplete = errors.New("measurements failed")

// errLate says that the figures of a window are useless, because the readings at its ends were late.
var errLate = errors.New("the machine was too busy to read the clocks in time")

// mostTries is how often a measurement is made that errLate ends.
const mostTries = 3

// name is what the locks of the next measurement begin with.
func (r *Runner) name(w peer.Workload) string {
	r.runs++
	return fmt.Sprintf("%s/%d", w, r.runs)
}

func (r *Runner) server(k peer.Kind) *server.Running { return r.servers.Running[k.Server] }
