// Package fromadvisory comes from PostgreSQL's advisory locks.
package fromadvisory

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/migrating/report"
)

// LockBefore waits for a session lock.
func LockBefore(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx) // the lock lives in this session
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext('nightly'))"); err != nil {
		return err
	}
	defer conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtext('nightly'))")
	return report.Write(ctx, pool)
}

// TryBefore does nothing while another program holds the lock.
func TryBefore(ctx context.Context, pool *pgxpool.Pool) (done bool, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	var locked bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(42)").Scan(&locked); err != nil || !locked {
		return false, err
	}
	defer conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(42)")
	return true, report.Write(ctx, pool)
}

// TxBefore holds the lock until its transaction ends.
func TxBefore(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(7, 1)"); err != nil {
			return err
		}
		return report.Write(ctx, tx)
	})
}
