// Package fromredislock comes from github.com/bsm/redislock.
package fromredislock

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/migrating/report"
)

// Before waits by asking again, for as long as ctx allows.
func Before(ctx context.Context, locker *redislock.Client, pool *pgxpool.Pool) error {
	lock, err := locker.Obtain(ctx, "nightly", 30*time.Second,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(20 * time.Millisecond)})
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return report.Write(ctx, pool)
}
