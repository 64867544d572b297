// Package fromshedlock comes from a table of locks with an expiry, as ShedLock's.
package fromshedlock

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/migrating/report"
)

// Schema is the table.
const Schema = `CREATE TABLE shedlock (
	name text PRIMARY KEY, lock_until timestamptz NOT NULL, locked_at timestamptz NOT NULL, locked_by text NOT NULL)`

// lock takes the row when it is free. It has no token: the same program may take it twice.
func lock(ctx context.Context, db report.DB, me string) (locked bool, err error) {
	tag, err := db.Exec(ctx, `INSERT INTO shedlock VALUES ('nightly', now() + interval '1 min', now(), $1)
		ON CONFLICT (name) DO UPDATE SET lock_until = now() + interval '1 min', locked_at = now(), locked_by = $1
		WHERE shedlock.lock_until <= now()`, me)
	return err == nil && tag.RowsAffected() == 1, err
}

func unlock(ctx context.Context, db report.DB, me string) error {
	_, err := db.Exec(ctx, "UPDATE shedlock SET lock_until = now() WHERE name = 'nightly' AND locked_by = $1", me)
	return err
}

// Before does nothing while another program holds the lock.
func Before(ctx context.Context, pool *pgxpool.Pool, me string) (done bool, err error) {
	if locked, err := lock(ctx, pool, me); err != nil || !locked {
		return false, err
	}
	defer unlock(context.WithoutCancel(ctx), pool, me)
	return true, report.Write(ctx, pool)
}
