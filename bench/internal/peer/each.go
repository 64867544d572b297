package peer

import (
	"context"
	"errors"
	"sync"
)

// atOnce is how many goroutines take many locks.
const atOnce = 32

// each acquires every name, some at once, and keeps what it has acquired.
func each(ctx context.Context, names []string, caller Caller) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan string)
	var all sync.WaitGroup
	errs := make([]error, atOnce)
	for i := range errs {
		all.Go(func() {
			for name := range next {
				if _, err := caller.Acquire(ctx, name); err != nil {
					errs[i] = err
					cancel(err)
					return
				}
			}
		})
	}
	func() {
		defer close(next)
		for _, name := range names {
			select {
			case next <- name:
			case <-ctx.Done():
				return
			}
		}
	}()
	all.Wait()
	return errors.Join(errs...)
}

// Hold has the client hold all names: in its own way if it has one, else with a caller for each.
func Hold(ctx context.Context, c Client, names []string) error {
	if h, ok := c.(Holder); ok {
		return h.Hold(ctx, names)
	}
	caller, err := c.Caller(ctx)
	if err != nil {
		return err
	}
	return each(ctx, names, caller)
}
