package run

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/procfs"
	"github.com/pglock-dev/pglock/bench/internal/worker"
)

// timed is what workers did together within a window.
type timed struct {
	worker.Result
	window    worker.Window
	serverCPU time.Duration
	allCPU    time.Duration // of everything on the machine
	ready     func() error  // called when all workers are ready; nil for nothing
	middle    func() error  // called in the middle of the window; nil for nothing
}

// together has workers carry out their orders in one window, and reads the server's processor time at both of its
// ends.
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
		t.Late = t.Late || r.Late
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
	// On a busy machine the readings are late: the use is scaled to a window of the right length.
	t.Late = t.window.Late(lasted)
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

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
