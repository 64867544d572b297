package run

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/report"
	"github.com/pglock-dev/pglock/bench/internal/worker"
)

// deathPatience is longer than any peer takes from the start of the holder to the next grant.
const deathPatience = 40 * time.Second

// deaths is W4. All peers wait for the death of their holders at the same time, each for its own; waiting is no work.
func (r *Runner) deaths(ctx context.Context, s step) error {
	errs := make([]error, len(s.kinds))
	var all sync.WaitGroup
	for i, k := range s.kinds {
		one := step{lines: s.lines[i : i+1], kinds: s.kinds[i : i+1], repetition: s.repetition}
		o := r.order(k, peer.W4, r.server(k), r.options.sizes().deathTTL)
		o.Callers, o.Holder = 1, true
		all.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, deathPatience, fmt.Errorf("no grant within %v", deathPatience))
			defer cancel()
			late, err := r.death(ctx, k, o)
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", k.Name, err)
				return
			}
			one.lines[0].Set(report.Late, s.repetition, milliseconds(late))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// death has one process take the lock, has this one wait for it, and kills the first. It returns how long after the
// expiry this one was granted the lock.
func (r *Runner) death(ctx context.Context, k peer.Kind, o worker.Order) (late time.Duration, err error) {
	const callers = 2 // the second connection asks for the expiry
	client, err := k.Open(ctx, peer.Config{Address: o.Address, Workload: peer.W4, Callers: callers, TTL: o.TTL,
		Smoke: o.Smoke})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Close(context.WithoutCancel(ctx))) }()
	expirer, ok := client.(peer.Expirer)
	if !ok {
		return 0, errors.New("this peer does not know when a lock falls free")
	}
	caller, err := client.Caller(ctx)
	if err != nil {
		return 0, err
	}
	d, granted, err := r.kill(ctx, caller, o)
	if err != nil {
		return 0, err
	}
	expiry, err := expirer.Expiry(ctx, d)
	if err != nil {
		return 0, fmt.Errorf("ask for the expiry: %w", err)
	}
	var g grant
	select {
	case g = <-granted:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if g.err != nil {
		return 0, g.err
	}
	if g.at.Before(d.Killed) {
		return 0, errors.New("the lock was granted while its holder lived")
	}
	return g.at.Sub(expiry), g.release(context.WithoutCancel(ctx))
}

// phases is the time within which the waiter begins. It must not depend on the holder's beginning: otherwise a peer
// that polls every 100 ms would find a lease of 2 s over at always the same moment.
const phases = 300 * time.Millisecond

// grant is what the one who waits gets.
type grant struct {
	at      time.Time
	release func(context.Context) error
	err     error
}

// kill starts the holder, has the caller wait, and kills the holder at a random moment.
func (r *Runner) kill(ctx context.Context, caller peer.Caller, o worker.Order) (d peer.Death, _ <-chan grant,
	err error) {
	holder, err := worker.Start(ctx, o)
	if err != nil {
		return d, nil, err
	}
	var mu sync.Mutex
	gone, err := holder.Granted(func(at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		d.LastSent = at
	})
	if err != nil {
		return d, nil, errors.Join(err, holder.Discard())
	}
	granted := make(chan grant, 1)
	phase := rand.N(phases)
	go func() {
		time.Sleep(phase)
		release, err := caller.Acquire(ctx, o.Name)
		granted <- grant{time.Now(), release, err}
	}()
	least := r.options.sizes().afterHolding
	alive := time.NewTimer(phase + least + rand.N(least/2))
	defer alive.Stop()
	select {
	case <-alive.C:
	case <-ctx.Done():
		return d, nil, errors.Join(context.Cause(ctx), holder.Discard())
	}
	err = holder.Kill()
	killed := time.Now()
	<-gone // every request is told
	err = errors.Join(err, holder.Discard())
	mu.Lock()
	defer mu.Unlock()
	d.Name, d.Killed = o.Name, killed
	return d, granted, err
}
