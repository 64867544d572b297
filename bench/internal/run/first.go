package run

import (
	"context"

	"github.com/pglock-dev/pglock/bench/internal/worker"
)

// firsts is W6, of one peer.
func (r *Runner) firsts(ctx context.Context, s step) error {
	at := r.server(s.kinds[0])
	o := r.order(s.kinds[0], s.lines[0].Workload, at, leaseTTL)
	o.Callers, o.Pool = 1, 1
	return r.counted(ctx, s, at, []worker.Order{o}, nil)
}
