package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const bareFence = `
	WITH l AS MATERIALIZED (
		SELECT ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::int AS ms FROM bare.locks_fenced
		WHERE name = $1 AND token = $2 AND grant_id = $3::uuid AND expires_at > clock_timestamp()),
	s AS MATERIALIZED (
		SELECT ms, set_config('lock_timeout', ms::text, true), set_config('statement_timeout', ms::text, true),
			set_config('idle_in_transaction_session_timeout', ms::text, true), set_config('tcp_user_timeout', ms::text, true),
			set_config('client_connection_check_interval', '1000', true) FROM l WHERE ms > 0)
	INSERT INTO bare.fences AS f (resource, last_token, advanced_at) SELECT $1, $2, clock_timestamp() FROM s
	ON CONFLICT (resource) DO UPDATE SET last_token = EXCLUDED.last_token, advanced_at = EXCLUDED.advanced_at
		WHERE f.last_token <= EXCLUDED.last_token
	RETURNING last_token`

// PlainWrite is a transaction that nothing protects: begin, one UPDATE, commit.
func PlainWrite() Kind {
	return Kind{
		Name: "plain-write", Server: Postgres,
		Is:         "a transaction over pgx without a lock",
		In:         []Workload{W5},
		Settings:   fmt.Sprintf("pool of %d", MostConnections),
		Guarantees: Guarantees{Durable: "yes, flushed before the answer", Fair: "-", Token: "no", Bound: "-"},
		Open:       func(ctx context.Context, c Config) (Client, error) { return openWriter(ctx, c, false) },
	}
}

// BareFence is the same with a fence by hand: begin, fence, UPDATE, commit with the check in a trigger.
func BareFence() Kind {
	return Kind{
		Name: "bare-fence", Server: Postgres,
		Is:       "a transaction over pgx with a fence by hand",
		In:       []Workload{W5},
		Settings: fmt.Sprintf("pool of %d", MostConnections),
		Guarantees: Guarantees{
			Durable: "yes, flushed before the answer",
			Fair:    "no, callers would ask again",
			Token:   "yes, checked inside COMMIT",
			Bound:   "lease, nothing renews it",
		},
		Open: func(ctx context.Context, c Config) (Client, error) { return openWriter(ctx, c, true) },
	}
}

type writerClient struct {
	*counter
	pool   *pgxpool.Pool
	fenced bool
}

func openWriter(ctx context.Context, c Config, fenced bool) (Client, error) {
	counted := newCounter(c)
	p, err := pool(ctx, c, counted, MostConnections)
	if err != nil {
		return nil, err
	}
	return &writerClient{counted, p, fenced}, nil
}

func (c *writerClient) Caller(context.Context) (Caller, error) {
	return nil, errors.New("this peer writes, and nothing else")
}

func (c *writerClient) Writer(ctx context.Context, n int) (func(context.Context) error, error) {
	if !c.fenced {
		return func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return addOne(ctx, tx, n) })
		}, nil
	}
	name, grantID := fmt.Sprint("account/", n), uuid.NewString()
	if _, err := c.pool.Exec(ctx, `UPDATE bare.locks_fenced SET expires_at = '-infinity' WHERE name = $1`,
		name); err != nil {
		return nil, err
	}
	var token int64
	try := fmt.Sprintf(bareTry, "locks_fenced")
	if err := c.pool.QueryRow(ctx, try, name, "bench", uuid.NewString(), grantID, time.Hour).Scan(&token); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
			var last int64
			if err := tx.QueryRow(ctx, bareFence, name, token, grantID).Scan(&last); err != nil {
				return err
			}
			return addOne(ctx, tx, n)
		})
	}, nil
}

func (c *writerClient) Close(context.Context) error {
	c.pool.Close()
	return nil
}
