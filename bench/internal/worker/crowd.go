package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
)

// Crowd is what the callers of W8 do.
type Crowd string

// The crowds.
const (
	Waits  Crowd = "waits"   // before the window begins and until its end, for locks that others hold
	Asks   Crowd = "asks"    // for a lock that another holds, when the window begins
	Starts Crowd = "starts"  // each makes its client when the window begins, and acquires and releases once
	InTurn Crowd = "in turn" // the same one after the other, each a lock of its own, which it keeps
)

// Lock is the name of the lock of a caller of W8; several callers want the same.
func (o Order) Lock(caller int) string { return fmt.Sprintf("%s/%d", o.Name, caller%o.Names) }

// crowdPatience is for what takes long on a small machine: many connections.
const crowdPatience = time.Minute

func (o Order) patience() time.Duration {
	if o.Apart {
		return crowdPatience
	}
	return patience
}

// crowd is W8.
func crowd(ctx context.Context, client peer.Client, o Order) (loop, error) {
	once := func(ctx context.Context, n int) error {
		caller, err := client.Caller(ctx)
		if err != nil {
			return err
		}
		release, err := caller.Acquire(ctx, o.Lock(o.First+n))
		if err != nil || o.Crowd == InTurn {
			return err
		}
		return release(ctx)
	}
	ended := make(chan error, o.Callers)
	all := func(ctx context.Context) { // those who wait are ended by the end of the client
		for n := range o.Callers {
			go func() { ended <- once(ctx, n) }()
		}
	}
	if o.Crowd == Waits {
		all(ctx)
	}
	return func(ctx context.Context, w Window) (r Result, err error) {
		if o.Crowd == Waits {
			r.CPU, r.Requests, r.Late = measure(w, client.Requests, ownCPU)()
			if len(ended) > 0 {
				err = fmt.Errorf("a call for a lock that is held has ended: %v", <-ended)
			}
			return r, err
		}
		time.Sleep(time.Until(w.Begin))
		if o.Crowd == Asks {
			all(ctx)
			return r, nil
		}
		ctx, cancel := context.WithDeadline(ctx, w.End)
		defer cancel()
		if o.Crowd == Starts {
			all(ctx)
		}
		for n := range o.Callers {
			if o.Crowd == InTurn {
				ended <- once(ctx, n)
			}
			err = errors.Join(err, <-ended)
		}
		return r, err
	}, nil
}
