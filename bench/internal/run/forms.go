package run

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/report"
)

// form is one shape that a workload has: how many do it, and where they are.
type form struct {
	workload peer.Workload
	short    string // as -forms takes it; several forms may share one, and then run together
	where    string // as tables name it
	takes    func(peer.Kind) bool
	together bool // all peers at the same time, because it is no work
	times    int  // in each repetition
	once     bool // in the first repetition alone, because it takes long to get ready
	run      func(r *Runner, ctx context.Context, s step) error
}

// forms are all of them, in the order in which tables have them.
func forms(size sizes) (list []form) {
	add := func(f form) {
		if f.takes == nil {
			f.takes = func(peer.Kind) bool { return true }
		}
		f.times = max(1, f.times)
		list = append(list, f)
	}
	for _, n := range size.pairCallers {
		add(form{
			workload: peer.W1, short: fmt.Sprint(n, "c"), where: report.Callers(n),
			run: func(r *Runner, ctx context.Context, s step) error { return r.pairs(ctx, s, n) },
		})
	}
	alone := func(w peer.Workload) {
		for _, n := range size.alone {
			add(form{
				workload: w, short: fmt.Sprint(n, "p"), where: report.Processes(n), takes: inSeveral,
				run: func(r *Runner, ctx context.Context, s step) error { return r.alone(ctx, s, n) },
			})
		}
	}
	alone(peer.W1)
	for _, n := range size.waiters {
		add(form{
			workload: peer.W2, short: fmt.Sprint(n, "c"), where: report.Waiters(n, report.InOne),
			run: func(r *Runner, ctx context.Context, s step) error { return r.waits(ctx, s, n, 1) },
		})
	}
	for _, n := range size.spread {
		add(form{
			workload: peer.W2, short: fmt.Sprint(n, "c", size.processes, "p"), where: report.Waiters(n, report.Spread8),
			takes: inSeveral,
			run:   func(r *Runner, ctx context.Context, s step) error { return r.waits(ctx, s, n, size.processes) },
		})
	}
	alone(peer.W2)
	for _, n := range size.leases {
		add(form{
			workload: peer.W3, short: fmt.Sprint(n), where: report.Leases(n), together: true,
			takes: func(k peer.Kind) bool { return k.MostLeases == 0 || n <= k.MostLeases },
			run:   func(r *Runner, ctx context.Context, s step) error { return r.keeps(ctx, s, n) },
		})
	}
	add(form{
		workload: peer.W4, short: "killed", where: report.HolderDies, together: true, times: size.deaths,
		run: func(r *Runner, ctx context.Context, s step) error { return r.deaths(ctx, s) },
	})
	for _, n := range size.writers {
		add(form{
			workload: peer.W5, short: fmt.Sprint(n, "c"), where: report.Callers(n),
			run: func(r *Runner, ctx context.Context, s step) error { return r.writes(ctx, s, n) },
		})
	}
	add(form{
		workload: peer.W6, short: "new", where: report.NewConnection,
		run: func(r *Runner, ctx context.Context, s step) error { return r.firsts(ctx, s) },
	})
	for _, n := range size.beside {
		for w, where := range []string{
			never: report.Processes(n), before: report.Beside(n, size.tickets),
			after: report.BesideLater(n, size.tickets),
		} {
			add(form{
				workload: peer.W7, short: fmt.Sprint(n, "p"), where: where,
				run: func(r *Runner, ctx context.Context, s step) error {
					return r.beside(ctx, s, n, size.tickets, when(w))
				},
			})
		}
	}
	addCrowds(size.crowd, add)
	return list
}

// addCrowds adds W8.
func addCrowds(n crowd, add func(form)) {
	processes := report.Processes(n.handing)
	for _, f := range []form{
		{short: "rest", where: report.Many(n.resting, report.AtRest), takes: queues, once: true, run: (*Runner).rest},
		{short: fmt.Sprint(n.handing, "p"), where: processes, takes: queues, run: (*Runner).handOvers},
		{
			short: fmt.Sprint(n.handing, "p"), where: report.BesideClients(n.handing, n.beside), takes: queues,
			once: true, run: (*Runner).handOversBeside,
		},
		{short: "start", where: report.Many(n.starting, report.Start), run: (*Runner).start},
		{short: "ask", where: report.Many(n.goroutines, report.Ask), takes: queues, run: (*Runner).ask},
	} {
		f.workload = peer.W8
		add(f)
	}
}

// queues tells whether a peer has callers that wait.
func queues(k peer.Kind) bool { return slices.Contains(k.In, peer.W2) }

// inSeveral are the peers of forms with several processes.
func inSeveral(k peer.Kind) bool { return !k.OneProcess }

// forms are those that were asked for.
func (o Options) forms() []form {
	return slices.DeleteFunc(forms(o.sizes()), func(f form) bool {
		return !slices.Contains(o.Workloads, f.workload) || len(o.Forms) > 0 && !slices.Contains(o.Forms, f.short)
	})
}

// Takes tells whether a peer takes part in anything that was asked for.
func (o Options) Takes(k peer.Kind) bool {
	return slices.ContainsFunc(o.forms(), func(f form) bool { return slices.Contains(k.In, f.workload) && f.takes(k) })
}

// CheckForms refuses the name of a form that no workload that is asked for has.
func (o Options) CheckForms() error {
	var known []string
	for _, f := range forms(o.sizes()) {
		name := string(f.workload) + " " + f.short
		if slices.Contains(o.Workloads, f.workload) && !slices.Contains(known, name) {
			known = append(known, name)
		}
	}
	for _, short := range o.Forms {
		if !slices.ContainsFunc(known, func(name string) bool { return strings.HasSuffix(name, " "+short) }) {
			return fmt.Errorf("form %q: must be one of those of the workloads: %s", short, strings.Join(known, ", "))
		}
	}
	return nil
}
