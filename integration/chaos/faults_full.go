//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
)

var fullFaults = []fault{
	{name: "full", about: "other sessions take every slot of the server (max_connections) for two to six seconds",
		lane: serverLane, weight: 3, quiet: true, full: true, run: full},
}

// fillers is how many sessions are opened at once.
const fillers = 4

// full takes every slot that is free, those for superusers too, and those that become free while it lasts.
func full(h *hit) error {
	var taken []*pgx.Conn
	defer func() {
		for _, conn := range taken {
			_ = conn.PgConn().Conn().Close() // as when a process ends
		}
	}()
	urls := []string{h.cluster.UserURL(cluster.Stranger), h.cluster.URL()}
	var until time.Time
	for until.IsZero() || time.Now().Before(until) {
		for _, url := range urls {
			more, err := fill(h.ctx, url)
			taken = append(taken, more...)
			if err != nil {
				return err
			}
		}
		if until.IsZero() {
			until = time.Now().Add(between(h.rand, 2*time.Second, 6*time.Second))
			h.evidence.line(fmt.Sprintf("%s the server is full, %d slots are ours", sayNow(), len(taken)))
		}
		wait(h.ctx, 50*time.Millisecond)
		if h.ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// fill opens sessions of a user until the server refuses one because it is full.
func fill(ctx context.Context, url string) (taken []*pgx.Conn, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range fillers {
		all.Go(func() {
			for {
				conn, failure := pgx.Connect(ctx, url)
				mu.Lock()
				if failure == nil {
					taken = append(taken, conn)
				}
				done := failure != nil || err != nil
				var refused *pgconn.PgError
				if failure != nil && (!errors.As(failure, &refused) || refused.Code != "53300") {
					err = failure
				}
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	all.Wait()
	return taken, err
}
