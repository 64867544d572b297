package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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
			if err := r.keep(ctx, one, at, []worker.Order{o}, timed{}, r.options.sizes().warmUp, ttl); err != nil {
				errs[i] = fmt.Errorf("%s: %w", k.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// keep measures what it costs that something is there for so long; in an open window, that something is done.
func (r *Runner) keep(ctx context.Context, s step, at *server.Running, orders []worker.Order,
	t timed, warmUp, lasts time.Duration) error {
	before, err := procfs.Connections(at.Port) // some may just be closing, as after
	if err != nil {
		return err
	}
	connections := 0
	t.look = func() error {
		n, err := procfs.Connections(at.Port)
		connections = max(connections, n)
		return err
	}
	if err := t.together(ctx, orders, warmUp, lasts, at.PID); err != nil {
		return err
	}
	if t.Late && !r.options.Smoke {
		return errLate
	}
	after, err := procfs.Connections(at.Port)
	if err != nil {
		return err
	}
	set := func(m report.Metric, v float64) { s.lines[0].Set(m, s.repetition, v) }
	set(report.Connections, float64(connections-min(before, after)))
	if t.open {
		set(report.ServerTime, milliseconds(t.serverCPU))
		set(report.AllServed, milliseconds(t.window.End.Sub(t.window.Begin)))
		return nil
	}
	set(report.PerSecond, float64(t.Requests)/lasts.Seconds())
	set(report.Beats, float64(t.Requests)/lasts.Seconds()*orders[0].TTL.Seconds()/3)
	set(report.ClientShare, milliseconds(t.CPU)/lasts.Seconds())
	set(report.ServerShare, milliseconds(t.serverCPU)/lasts.Seconds())
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
