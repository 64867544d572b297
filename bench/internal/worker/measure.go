package worker

import (
	"context"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/procfs"
)

// measure reads figures at the beginning of the window; the function that it returns waits for the reading at the end
// and has the differences. late says that the machine was too busy for useful figures.
func measure(w Window, requests func() int64, cpu func() time.Duration) func() (_ time.Duration, _ int64, late bool) {
	done := make(chan struct{})
	var used time.Duration
	var sent int64
	var late bool
	go func() {
		defer close(done)
		time.Sleep(time.Until(w.Begin))
		began, usedBefore, sentBefore := time.Now(), cpu(), requests()
		time.Sleep(time.Until(w.End))
		used, sent = cpu()-usedBefore, requests()-sentBefore
		// On a busy machine the readings are late: the use is scaled to a window of the right length.
		lasted := time.Since(began)
		late = w.Late(lasted)
		part := float64(w.End.Sub(w.Begin)) / float64(lasted)
		used, sent = time.Duration(float64(used)*part), int64(math.Round(float64(sent)*part))
	}()
	return func() (time.Duration, int64, bool) {
		<-done
		return used, sent, late
	}
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // it knows no error for this process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pairsOutside is W1 of a peer that is a program of its own.
func pairsOutside(ctx context.Context, runner peer.PairRunner, o Order, w Window) (r Result, err error) {
	var pid atomic.Int64
	stop := measure(w, func() int64 { return 0 }, func() time.Duration {
		used, err := procfs.TreeCPU(int(pid.Load()))
		if err != nil {
			return 0
		}
		return used
	})
	pairs, err := runner.RunPairs(ctx, o.Name, w.End, func(p int) { pid.Store(int64(p)) })
	r.CPU, _, r.Late = stop()
	if err != nil {
		return r, err
	}
	r.Total = len(pairs)
	for _, p := range pairs {
		if w.has(p.Done) {
			r.Took = append(r.Took, p.Took)
		}
	}
	return r, nil
}
