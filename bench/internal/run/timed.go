package run

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/procfs"
	"github.com/pglock-dev/pglock/bench/internal/report"
	"github.com/pglock-dev/pglock/bench/internal/server"
	"github.com/pglock-dev/pglock/bench/internal/stats"
	"github.com/pglock-dev/pglock/bench/internal/worker"
)

// leaseTTL is that of locks that are given back at once.
const leaseTTL = 30 * time.Second

// namesInTurn is how many locks each of several callers of a process takes in turn.
const namesInTurn = 8

// timed is what workers did together within a window.
type timed struct {
	worker.Result
	window    worker.Window
	serverCPU time.Duration
	allCPU    time.Duration // of everything on the machine
	ready     func() error  // called when all workers are ready; nil for nothing
	middle    func() error  // called in the middle of the window; nil for nothing
}

// together has workers do their orders in one window, and reads the server's processor time at both of its ends.
func (t *timed) together(ctx context.Context, orders []worker.Order, warmUp, lasts time.Duration, pid int) error {
	group, err := worker.StartGroup(ctx, orders)
	if err != nil {
		return err
	}
	if err := group.Ready(); err != nil {
		return errors.Join(err, group.Discard())
	}
	if t.ready != nil {
		if err := t.ready(); err != nil {
			return errors.Join(err, group.Discard())
		}
	}
	begin := time.Now().Add(warmUp)
	t.window = worker.Window{Begin: begin, End: begin.Add(lasts)}
	if err := group.Go(t.window); err != nil {
		return errors.Join(err, group.Discard())
	}
	if err := t.watch(ctx, pid); err != nil {
		return errors.Join(err, group.Discard())
	}
	results, err := group.Wait()
	if err != nil {
		return err
	}
	for _, r := range results {
		t.Took = append(t.Took, r.Took...)
		t.FromConnected = append(t.FromConnected, r.FromConnected...)
		t.Shares = append(t.Shares, r.Shares...)
		t.Total, t.CPU, t.Requests = t.Total+r.Total, t.CPU+r.CPU, t.Requests+r.Requests
	}
	slices.Sort(t.Took)
	slices.Sort(t.FromConnected)
	return nil
}

func (t *timed) watch(ctx context.Context, pid int) error {
	sleep := func(until time.Time) error {
		late := time.NewTimer(time.Until(until))
		defer late.Stop()
		select {
		case <-late.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := sleep(t.window.Begin); err != nil {
		return err
	}
	began := time.Now()
	before, err := t.read(pid)
	if err != nil {
		return err
	}
	if t.middle != nil {
		if err := sleep(t.window.Begin.Add(t.window.End.Sub(t.window.Begin) / 2)); err != nil {
			return err
		}
		if err := t.middle(); err != nil {
			return err
		}
	}
	if err := sleep(t.window.End); err != nil {
		return err
	}
	lasted := time.Since(began)
	after, err := t.read(pid)
	// On a busy machine the second reading is late: what was used is that of a window of the right length.
	part := float64(t.window.End.Sub(t.window.Begin)) / float64(lasted)
	t.serverCPU = time.Duration(float64(after.server-before.server) * part)
	t.allCPU = time.Duration(float64(after.all-before.all) * part)
	return err
}

type cpu struct{ server, all time.Duration }

func (t *timed) read(pid int) (now cpu, err error) {
	if now.server, err = procfs.TreeCPU(pid); err != nil {
		return now, err
	}
	now.all, err = procfs.BusyCPU()
	return now, err
}

// others is the part of the machine that went to neither client nor server, from 0 to 1.
func (t *timed) others() float64 {
	machine := float64(t.window.End.Sub(t.window.Begin)) * float64(runtime.NumCPU())
	return max(0, float64(t.allCPU-t.CPU-t.serverCPU)/machine)
}

// warmServers has each server work for a while before anything counts, at the same time: some are slow until they have
// (ZooKeeper's virtual machine compiles what is used often, which takes longer than what others need).
func (r *Runner) warmServers(ctx context.Context) error {
	size := r.options.sizes()
	lasts := size.serverWarmUp
	if r.servers.Running[peer.ZooKeeper] == nil {
		lasts = min(lasts, 2*time.Second)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	warm := make(map[peer.Server]bool)
	for _, k := range r.options.Peers {
		at := r.server(k)
		if at == nil || warm[k.Server] || !slices.Contains(k.In, peer.W1) {
			continue
		}
		warm[k.Server] = true
		o := r.order(k, peer.W1, at, leaseTTL)
		o.Callers, o.Names = slices.Max(size.pairCallers), namesInTurn
		all.Go(func() {
			var t timed
			if err := t.together(ctx, []worker.Order{o}, 0, lasts, at.PID); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("warm up %s by %s: %w", k.Server, k.Name, err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// order is what all orders have in common.
func (r *Runner) order(k peer.Kind, w peer.Workload, at *server.Running, ttl time.Duration) worker.Order {
	return worker.Order{Peer: k.Name, Address: at.Address, Workload: w, Name: r.name(w), TTL: ttl, Smoke: r.options.Smoke}
}

// pairs is W1, of one peer.
func (r *Runner) pairs(ctx context.Context, s step, callers int) error {
	at := r.server(s.kinds[0])
	o := r.order(s.kinds[0], s.lines[0].Workload, at, leaseTTL)
	o.Callers, o.Names = callers, namesInTurn
	return r.counted(ctx, s, at, []worker.Order{o}, nil)
}

// alone is W1 or W2 with one caller in each of so many processes, over one connection: to an application, a client of its
// own in each of its processes. In W1 each has a name of its own.
func (r *Runner) alone(ctx context.Context, s step, processes int) error {
	at := r.server(s.kinds[0])
	o := r.order(s.kinds[0], s.lines[0].Workload, at, leaseTTL)
	o.Callers, o.Names, o.Pool = 1, 1, 1
	return r.counted(ctx, s, at, spread(o, processes), nil)
}

// spread gives each process its part of the callers.
func spread(o worker.Order, processes int) (orders []worker.Order) {
	for p := range processes {
		o.First = p * o.Callers
		orders = append(orders, o)
	}
	return orders
}

// writes is W5, of one peer.
func (r *Runner) writes(ctx context.Context, s step, callers int) error {
	at := r.server(s.kinds[0])
	o := r.order(s.kinds[0], s.lines[0].Workload, at, time.Hour)
	o.Callers = callers
	return r.counted(ctx, s, at, []worker.Order{o}, nil)
}

// waits is W2, of one peer.
func (r *Runner) waits(ctx context.Context, s step, waiters, processes int) error {
	at := r.server(s.kinds[0])
	o := r.order(s.kinds[0], s.lines[0].Workload, at, leaseTTL)
	o.Callers = waiters / processes
	return r.counted(ctx, s, at, spread(o, processes), nil)
}

// counted measures what is counted in turns, and puts it down. ready, if there is one, is called when all workers are
// ready.
func (r *Runner) counted(ctx context.Context, s step, at *server.Running, orders []worker.Order, ready func() error) error {
	line := s.lines[0]
	before, err := readLog(ctx, at)
	if err != nil {
		return err
	}
	t := timed{ready: ready}
	if err := t.together(ctx, orders, r.options.sizes().warmUp+s.kinds[0].WarmUp, r.options.Duration, at.PID); err != nil {
		return err
	}
	if t.Total == 0 {
		return fmt.Errorf("nothing was done in %v", r.options.Duration)
	}
	after, err := readLog(ctx, at)
	if err != nil {
		return err
	}
	n := float64(len(t.Took))
	set := func(m report.Metric, v float64) { line.Set(m, s.repetition, v) }
	set(report.Others, t.others())
	set(report.Rate, n/r.options.Duration.Seconds())
	if len(t.Took) == 0 { // all took longer than the window
		return nil
	}
	set(report.P50, milliseconds(stats.Percentile(t.Took, 50)))
	set(report.P99, milliseconds(stats.Percentile(t.Took, 99)))
	if len(t.FromConnected) > 0 {
		set(report.FirstGrant, milliseconds(stats.Percentile(t.FromConnected, 50)))
	}
	set(report.ClientCPU, t.CPU.Seconds()*1e6/n)
	set(report.ServerCPU, t.serverCPU.Seconds()*1e6/n)
	if t.Requests > 0 { // a program of its own does not tell
		set(report.Statements, float64(t.Requests)/n)
	}
	if line.Workload == peer.W2 {
		set(report.Fair, stats.Fairness(t.Shares, t.window.Begin, t.window.End))
	}
	if at.Name == peer.Postgres && (line.Workload == peer.W1 || line.Workload == peer.W5) {
		set(report.Flushes, float64(after.flushes-before.flushes)/float64(t.Total))
		set(report.WAL, float64(after.bytes-before.bytes)/float64(t.Total))
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
