package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// Scheduler ticks in one process of many: in the leader. When that dies or resigns, another one leads and goes on.
type Scheduler struct {
	Candidate *leader.Candidate // leader.New(client, "scheduler")
	Store     *fencedstore.Store
	Every     time.Duration
	// Tick does the leader's work in the given transaction, which is refused when this process does not lead any more.
	Tick func(context.Context, pgx.Tx) error
}

// Run campaigns, and ticks while this process leads. Call it in every process. It returns when ctx ends or a tick fails.
func (s *Scheduler) Run(ctx context.Context) error {
	return s.Candidate.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
		ticker := time.NewTicker(s.Every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done(): // somebody else leads from now on, or this process ends
				return context.Cause(ctx)
			}
			if err := s.Store.Write(ctx, lease, s.Tick, fencedstore.WithSameToken()); err != nil {
				return err
			}
		}
	})
}
