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
	open      bool          // the window ends when all workers are done, and then done has returned
	done      func() error  // nil for nothing
	look      func() error  // called in the middle of the window, and all the time in one that is open; nil for nothing
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
	if err := t.watch(ctx, pid, group); err != nil {
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

// watch reads the use of the processor at both ends of the window. It returns when the workers are done.
func (t *timed) watch(ctx context.Context, pid int, group worker.Group) error {
	sleep := func(until time.Time) error { return pause(ctx, time.Until(until)) }
	if err := sleep(t.window.Begin); err != nil {
		return err
	}
	began := time.Now()
	before, err := t.read(pid)
	if err != nil {
		return err
	}
	if t.look != nil && !t.open {
		if err := sleep(t.window.Begin.Add(t.window.End.Sub(t.window.Begin) / 2)); err != nil {
			return err
		}
		if err := t.look(); err != nil {
			return err
		}
	}
	if t.open {
		err = t.lookUntilDone(group)
		t.window.End = time.Now()
	} else {
		err = sleep(t.window.End)
	}
	if err != nil {
		return err
	}
	lasted := time.Since(began)
	after, err := t.read(pid)
	// On a busy machine the readings are late: the use is scaled to a window of the right length.
	t.Late = t.window.Late(lasted)
	part := float64(t.window.End.Sub(t.window.Begin)) / float64(lasted)
	t.serverCPU = time.Duration(float64(after.server-before.server) * part)
	t.allCPU = time.Duration(float64(after.all-before.all) * part)
	if err != nil || t.open {
		return err
	}
	return group.Done()
}

// lookEvery is from look to look in a window that is open.
const lookEvery = 5 * time.Millisecond

func (t *timed) lookUntilDone(group worker.Group) error {
	done := make(chan error, 1)
	go func() {
		err := group.Done()
		if err == nil && t.done != nil {
			err = t.done()
		}
		done <- err
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return errors.Join(err, t.look())
		case <-tick.C:
			if err := t.look(); err != nil {
				return errors.Join(err, <-done)
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-late.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
