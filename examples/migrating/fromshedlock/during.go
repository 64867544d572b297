package fromshedlock

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

var errOvertaken = errors.New("an old program has the lock")

// During holds the lease and the old row. The transaction locks the row, so that no old program takes it before COMMIT.
// It notes the night as After does: during the rollout of After the row no longer keeps a second run away.
func During(
	ctx context.Context, client *pglock.Client, store *fencedstore.Store, pool *pgxpool.Pool, me, night string,
) (done bool, err error) {
	lease, err := client.TryAcquire(ctx, "nightly")
	if errors.Is(err, pglock.ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lease.Release(ctx)
	if locked, err := lock(ctx, pool, me); err != nil || !locked {
		return false, err
	}
	defer func() { // for 5 s at most: TCP notices only after minutes that PostgreSQL is cut off
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = unlock(ctx, pool, me) // at worst it ends at its lock_until
	}()
	err = store.Once(ctx, lease, "nightly "+night, func(ctx context.Context, tx pgx.Tx) error {
		var mine bool
		err := tx.QueryRow(ctx, `SELECT locked_by = $1 AND lock_until > clock_timestamp()
			FROM shedlock WHERE name = 'nightly' FOR UPDATE`, me).Scan(&mine)
		if err == nil && !mine {
			err = errOvertaken
		}
		if err != nil {
			return err
		}
		return report.Write(ctx, tx)
	})
	if errors.Is(err, fencedstore.ErrDone) {
		return false, nil
	}
	return err == nil, err
}
