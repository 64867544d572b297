package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/worker"
)

// warmServers has each server work for a while before anything counts, all at the same time: some are slow at first.
// ZooKeeper's virtual machine takes longest, since it compiles what is used often.
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
