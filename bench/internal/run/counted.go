package run

import (
	"context"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/report"
	"github.com/pglock-dev/pglock/bench/internal/server"
	"github.com/pglock-dev/pglock/bench/internal/stats"
	"github.com/pglock-dev/pglock/bench/internal/worker"
)

// leaseTTL is that of locks that are given back at once.
const leaseTTL = 30 * time.Second

// namesInTurn is how many locks each of several callers of a process takes in turn.
const namesInTurn = 8

// order is what all orders have in common.
func (r *Runner) order(k peer.Kind, w peer.Workload, at *server.Running, ttl time.Duration) worker.Order {
	return worker.Order{Peer: k.Name, Address: at.Address, Workload: w, Name: r.name(w), TTL: ttl,
		Smoke: r.options.Smoke}
}

// pairs is W1, of one peer.
func (r *Runner) pairs(ctx context.Context, s step, callers int) error {
	at := r.server(s.kinds[0])
	o := r.order(s.kinds[0], s.lines[0].Workload, at, leaseTTL)
	o.Callers, o.Names = callers, namesInTurn
	return r.counted(ctx, s, at, []worker.Order{o}, nil)
}

// alone is W1 or W2 with one caller in each of so many processes, over one connection: to an application, a client in
// each of its processes. In W1 each has its own name.
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

// counted measures in turns what is counted, and records it. ready, if given, is called when all workers are ready.
func (r *Runner) counted(ctx context.Context, s step, at *server.Running, orders []worker.Order,
	ready func() error) error {
	line := s.lines[0]
	readLog := readLog
	if line.Workload == peer.W8 { // whose crowd stays connected
		readLog = func(context.Context, *server.Running) (logUse, error) { return logUse{}, nil }
	}
	before, err := readLog(ctx, at)
	if err != nil {
		return err
	}
	t := timed{ready: ready}
	if err := t.together(ctx, orders, r.options.sizes().warmUp+s.kinds[0].WarmUp, r.options.Duration,
		at.PID); err != nil {
		return err
	}
	if t.Late && !r.options.Smoke {
		return errLate
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
