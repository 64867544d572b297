package peer

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Advisory is PostgreSQL's own session lock, held by a connection that is taken from the pool meanwhile.
func Advisory() Kind {
	return Kind{
		Name: "advisory", Is: "pg_advisory_lock over pgx", Server: Postgres, Settings: "a connection for each caller",
		Guarantees: Guarantees{
			Durable: "no, held in memory",
			Fair:    "yes, the server's lock queue",
			Token:   "no",
			Bound:   "connection",
		},
		In: []Workload{W1, W2, W4},
		Notes: map[Workload]string{
			W3: "has no leases: a lock costs a connection, and nothing is renewed",
			W4: "ends with the connection: counted from the kill",
		},
		Open: openAdvisory,
	}
}

type advisoryClient struct {
	*counter
	pool *pgxpool.Pool
}

func openAdvisory(ctx context.Context, c Config) (Client, error) {
	counted := newCounter(c)
	p, err := pool(ctx, c, counted, max(1, c.Callers))
	if err != nil {
		return nil, err
	}
	return &advisoryClient{counted, p}, nil
}

func (c *advisoryClient) Caller(context.Context) (Caller, error) {
	return Func(func(ctx context.Context, name string) (func(context.Context) error, error) {
		conn, err := c.pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, name); err != nil {
			conn.Release()
			return nil, err
		}
		return func(ctx context.Context) error {
			defer conn.Release()
			var was bool
			err := conn.QueryRow(ctx, `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, name).Scan(&was)
			if err == nil && !was {
				err = errLost(name)
			}
			return err
		}, nil
	}), nil
}

// Expiry is the kill: the server sees the connection end.
func (c *advisoryClient) Expiry(_ context.Context, d Death) (time.Time, error) { return d.Killed, nil }

func (c *advisoryClient) Close(context.Context) error {
	c.pool.Close()
	return nil
}
