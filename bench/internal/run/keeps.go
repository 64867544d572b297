package run

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/procfs"
	"github.com/pglock-dev/pglock/bench/internal/report"
	"github.com/pglock-dev/pglock/bench/internal/server"
	"github.com/pglock-dev/pglock/bench/internal/worker"
)

// keeps is W3. All peers hold their leases at the same time, which is hardly any work. Those on PostgreSQL have a
// server each, so that its processor time is theirs.
func (r *Runner) keeps(ctx context.Context, s step, leases int) error {
	if err := r.servers3(ctx, s.kinds); err != nil {
		return err
	}
	ttl := r.options.sizes().leaseTTL
	errs := make([]error, len(s.kinds))
	var all sync.WaitGroup
	for i, k := range s.kinds {
		at := r.server3(k)
		one := step{lines: s.lines[i : i+1], kinds: s.kinds[i : i+1], repetition: s.repetition}
		o := r.order(k, peer.W3, at, ttl)
		o.Leases, o.Callers = leases, 1
		all.Go(func() {
			if err := r.keep(ctx, one, at, o); err != nil {
				errs[i] = fmt.Errorf("%s: %w", k.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (r *Runner) keep(ctx context.Context, s step, at *server.Running, o worker.Order) error {
	before, err := procfs.Connections(at.Port) // some may just be closing, as after
	if err != nil {
		return err
	}
	connections := 0
	t := timed{middle: func() (err error) {
		connections, err = procfs.Connections(at.Port)
		return err
	}}
	if err := t.together(ctx, []worker.Order{o}, r.options.sizes().warmUp, o.TTL, at.PID); err != nil {
		return err
	}
	after, err := procfs.Connections(at.Port)
	if err != nil {
		return err
	}
	set := func(m report.Metric, v float64) { s.lines[0].Set(m, s.repetition, v) }
	set(report.PerSecond, float64(t.Requests)/o.TTL.Seconds())
	set(report.Beats, float64(t.Requests)/3) // thirds of the TTL that the window has
	set(report.ClientShare, milliseconds(t.CPU)/o.TTL.Seconds())
	set(report.ServerShare, milliseconds(t.serverCPU)/o.TTL.Seconds())
	set(report.Connections, float64(connections-min(before, after)))
	return nil
}

// servers3 starts a PostgreSQL server for each peer that needs one and has none. If no figure counts they share one.
func (r *Runner) servers3(ctx context.Context, kinds []peer.Kind) error {
	if r.options.Smoke {
		return nil
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, k := range kinds {
		if k.Server != peer.Postgres || r.own[k.Name] != nil {
			continue
		}
		all.Go(func() {
			s, err := server.Start(ctx, peer.Postgres, server.Options{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			} else {
				r.own[k.Name] = s
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (r *Runner) server3(k peer.Kind) *server.Running {
	if s := r.own[k.Name]; s != nil {
		return s
	}
	return r.server(k)
}
