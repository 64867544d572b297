// Package fromredsync comes from github.com/go-redsync/redsync.
package fromredsync

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/migrating/report"
)

// Before waits by asking again, up to 400 times.
func Before(ctx context.Context, locks *redsync.Redsync, pool *pgxpool.Pool) error {
	mutex := locks.NewMutex("nightly", redsync.WithExpiry(30*time.Second), redsync.WithTries(400))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx))
	return report.Write(ctx, pool)
}
