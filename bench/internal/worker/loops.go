package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/stats"
)

// firstUses is how often each caller of W1 acquires before the clock starts: once per name, and often enough for a
// server to keep the plans of its statements.
const firstUses = 8

// turn does the work once. began is when it did; it returns the time that counts as its end.
type turn func(ctx context.Context) (done time.Time, err error)

// repeat has each caller do its turns until the window ends. A turn that begins within the window may end after it,
// and then does not count; a turn that w.End cuts off is no error.
func repeat(ctx context.Context, client peer.Client, w Window, turns []turn) (Result, error) {
	stop := measure(w, client.Requests, ownCPU)
	took := make([][]time.Duration, len(turns))
	r := Result{Shares: make([]stats.Share, len(turns))}
	totals, errs := make([]int, len(turns)), make([]error, len(turns))
	waiting, cut := context.WithDeadline(ctx, w.End)
	defer cut()
	var all sync.WaitGroup
	for n, turn := range turns {
		all.Go(func() {
			s := &r.Shares[n]
			s.From = time.Now()
			for {
				began := time.Now()
				if !began.Before(w.End) {
					break
				}
				done, err := turn(waiting)
				if err != nil {
					if ctx.Err() != nil || waiting.Err() == nil {
						errs[n] = err
					}
					break
				}
				totals[n]++
				if w.has(done) {
					s.Served++
					took[n] = append(took[n], done.Sub(began))
				}
			}
			s.To = time.Now()
		})
	}
	all.Wait()
	r.CPU, r.Requests, r.Late = stop()
	r.Took = slices.Concat(took...)
	for _, n := range totals {
		r.Total += n
	}
	return r, errors.Join(errs...)
}

// pairs is W1: each caller acquires and releases locks that nobody else wants.
func pairs(ctx context.Context, client peer.Client, o Order) (loop, error) {
	if runner, ok := client.(peer.PairRunner); ok {
		return func(ctx context.Context, w Window) (Result, error) { return pairsOutside(ctx, runner, o, w) }, nil
	}
	turns := make([]turn, o.Callers)
	for n := range turns {
		caller, err := client.Caller(ctx)
		if err != nil {
			return nil, err
		}
		names := make([]string, max(1, o.Names))
		for i := range names {
			names[i] = fmt.Sprintf("%s/%d/%d", o.Name, o.First+n, i)
		}
		next := 0
		turns[n] = func(context.Context) (time.Time, error) {
			name := names[next%len(names)]
			next++
			release, err := caller.Acquire(ctx, name)
			if err == nil {
				err = release(ctx)
			}
			return time.Now(), err
		}
	}
	if err := firstUse(ctx, turns, firstUses); err != nil {
		return nil, err
	}
	return usedBefore(client, turns, firstUses), nil
}

// firstUse has each caller do its turn so often before the clock starts: the cost of a new name on the server, and of
// the connections of a client's first call, is not measured.
func firstUse(ctx context.Context, turns []turn, times int) error {
	errs := make([]error, len(turns))
	var all sync.WaitGroup
	for n, turn := range turns {
		all.Go(func() {
			for i := 0; i < times && errs[n] == nil; i++ {
				_, errs[n] = turn(ctx)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// usedBefore repeats turns that were done so often before, which counts in the total.
func usedBefore(client peer.Client, turns []turn, times int) loop {
	return func(ctx context.Context, w Window) (Result, error) {
		r, err := repeat(ctx, client, w, turns)
		r.Total += times * len(turns)
		return r, err
	}
}

// waits is W2: all callers want the same lock. What counts is the grant.
func waits(ctx context.Context, client peer.Client, o Order) (loop, error) {
	var turns []turn
	for range o.Callers {
		caller, err := client.Caller(ctx)
		if err != nil {
			return nil, err
		}
		turns = append(turns, func(cut context.Context) (time.Time, error) {
			release, err := caller.Acquire(cut, o.Name)
			if err != nil {
				return time.Time{}, err
			}
			granted := time.Now()
			releasing, released := context.WithTimeout(ctx, patience)
			defer released()
			return granted, release(releasing)
		})
	}
	first, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := firstUse(first, turns, 1); err != nil {
		return nil, err
	}
	return usedBefore(client, turns, 1), nil
}

// writes is W5: each caller writes a row of its own.
func writes(ctx context.Context, client peer.Client, o Order) (loop, error) {
	writer, ok := client.(peer.Writer)
	if !ok {
		return nil, fmt.Errorf("peer %s has no writes", o.Peer)
	}
	var turns []turn
	for n := range o.Callers {
		write, err := writer.Writer(ctx, o.First+n)
		if err != nil {
			return nil, err
		}
		turns = append(turns, func(context.Context) (time.Time, error) {
			err := write(ctx)
			return time.Now(), err
		})
	}
	return func(ctx context.Context, w Window) (Result, error) { return repeat(ctx, client, w, turns) }, nil
}

// keeps is W3: many leases are taken before the window, and kept.
func keeps(ctx context.Context, client peer.Client, o Order) (loop, error) {
	names := make([]string, o.Leases)
	for i := range names {
		names[i] = fmt.Sprintf("%s/%d", o.Name, i)
	}
	if err := peer.Hold(ctx, client, names); err != nil {
		return nil, err
	}
	return func(ctx context.Context, w Window) (r Result, err error) {
		r.CPU, r.Requests, r.Late = measure(w, client.Requests, ownCPU)()
		return r, nil
	}, nil
}
