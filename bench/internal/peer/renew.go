package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	renewTake = `
		INSERT INTO bare.locks_renew (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at)
		SELECT name, 'bench', $2::uuid, gen_random_uuid(), nextval('bare.seq'), $3::interval,
			clock_timestamp(), clock_timestamp(), clock_timestamp() + $3::interval
		FROM unnest($1::text[]) AS a (name) RETURNING name, token, grant_id`
	renewAll = `
		UPDATE bare.locks_renew l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
		FROM unnest($1::text[], $2::bigint[], $3::uuid[]) AS a (name, token, grant_id)
		WHERE l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id AND l.expires_at > clock_timestamp()`
)

// BareRenew renews all leases with the one UPDATE that it takes, each third of the TTL.
func BareRenew() Kind {
	return Kind{
		Name: "bare-renew", Server: Postgres,
		Is:       "SQL over pgx, one UPDATE for all leases",
		In:       []Workload{W3},
		Settings: "each third of the TTL",
		Guarantees: Guarantees{
			Durable: "yes, flushed before the answer",
			Fair:    "no, callers would ask again",
			Token:   "yes, nothing checks it",
			Bound:   "lease",
		},
		Open: openRenew,
	}
}

type renewClient struct {
	*counter
	config  Config
	pool    *pgxpool.Pool
	stop    context.CancelFunc
	stopped chan struct{} // nil until something is held
	failed  error         // of a renewal; read after stopped
}

func openRenew(ctx context.Context, c Config) (Client, error) {
	counted := newCounter(c)
	p, err := pool(ctx, c, counted, 1)
	if err != nil {
		return nil, err
	}
	return &renewClient{counter: counted, config: c, pool: p}, nil
}

func (c *renewClient) Caller(context.Context) (Caller, error) {
	return nil, errors.New("bare-renew holds many leases, and nothing else")
}

func (c *renewClient) Hold(ctx context.Context, names []string) error {
	rows, err := c.pool.Query(ctx, renewTake, names, uuid.New(), c.config.TTL)
	if err != nil {
		return err
	}
	defer rows.Close()
	var held []string
	var tokens []int64
	var grantIDs []uuid.UUID
	for rows.Next() {
		var name string
		var token int64
		var grantID uuid.UUID
		if err := rows.Scan(&name, &token, &grantID); err != nil {
			return err
		}
		held, tokens, grantIDs = append(held, name), append(tokens, token), append(grantIDs, grantID)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	c.stopped = make(chan struct{})
	go func() {
		defer close(c.stopped)
		tick := time.NewTicker(c.config.TTL / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			tag, err := c.pool.Exec(ctx, renewAll, held, tokens, grantIDs)
			if err == nil && tag.RowsAffected() != int64(len(held)) {
				err = fmt.Errorf("%d of %d leases were renewed", tag.RowsAffected(), len(held))
			}
			if err != nil && ctx.Err() == nil {
				c.failed = errors.Join(c.failed, err)
			}
		}
	}()
	return nil
}

func (c *renewClient) Close(context.Context) error {
	if c.stopped != nil {
		c.stop()
		<-c.stopped
	}
	c.pool.Close()
	return c.failed
}
