package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Pglock is this project's own library, by its public functions alone.
func Pglock() Kind {
	return Kind{
		Name: "pglock", Is: "this library", Server: Postgres,
		Settings: "one Client for each process; " + poolSettings(),
		Guarantees: Guarantees{
			Durable: "yes, flushed before the answer",
			Fair:    "yes, a queue on the server",
			Token:   "yes, checked inside COMMIT",
			Bound:   "lease",
		},
		In:      Workloads(),
		Modules: []string{"github.com/jackc/pgx/v5"},
		Open:    func(ctx context.Context, c Config) (Client, error) { return openPglock(ctx, c) },
	}
}

// The schemas of PglockHistory and PglockWithoutHistory.
const (
	HistorySchema        = "pglock_history"
	WithoutHistorySchema = "pglock_without"
)

// PglockHistory is Pglock with every tenure in the history.
func PglockHistory() Kind {
	return pglockIn(HistorySchema, "pglock-history", "this library, history at level all")
}

// PglockWithoutHistory is Pglock without the trigger that level all enables: what the default level costs is the
// difference.
func PglockWithoutHistory() Kind {
	return pglockIn(WithoutHistorySchema, "pglock-no-history", "this library, without the trigger of the history")
}

// pglockIn is Pglock in a schema by itself.
func pglockIn(schema, name, is string) Kind {
	k := Pglock()
	k.Name, k.Is, k.In = name, is, []Workload{W1}
	k.Open = func(ctx context.Context, c Config) (Client, error) {
		return openPglock(ctx, c, pglock.WithSchema(schema))
	}
	return k
}

type pglockClient struct {
	*counter
	config Config
	pool   *pgxpool.Pool
	opts   []pglock.Option
	client *pglock.Client // nil: not made yet
	store  *fencedstore.Store
}

func openPglock(ctx context.Context, c Config, opts ...pglock.Option) (Client, error) {
	counted := newCounter(c)
	p, err := pool(ctx, c, counted, MostConnections)
	if err != nil {
		return nil, err
	}
	client, err := newPglock(ctx, c, counted, p, opts...)
	if err != nil {
		p.Close()
	}
	return client, err
}

func newPglock(ctx context.Context, c Config, counted *counter, p *pgxpool.Pool, opts ...pglock.Option) (Client,
	error) {
	opts = append(opts, pglock.WithDefaultTTL(c.TTL), pglock.WithDefaultHolder("bench"))
	client := &pglockClient{counted, c, p, opts, nil, fencedstore.New(p)}
	if c.Late {
		return client, nil
	}
	return client, client.start(ctx)
}

func (c *pglockClient) start(ctx context.Context) (err error) {
	c.client, err = pglock.New(ctx, c.pool, c.opts...)
	return err
}

// First makes a Client over a connection of its own, as a program that starts.
func (c *pglockClient) First(ctx context.Context, name string) (First, error) {
	return first(ctx, c.config, c.counter, name, func(p *pgxpool.Pool) (Client, error) {
		return newPglock(ctx, c.config, c.counter, p)
	})
}

func (c *pglockClient) Caller(ctx context.Context) (Caller, error) {
	if c.config.Late {
		if err := c.start(ctx); err != nil {
			return nil, err
		}
	}
	acquire := c.client.TryAcquire
	if c.config.waits() {
		acquire = c.client.Acquire
	}
	return Func(func(ctx context.Context, name string) (func(context.Context) error, error) {
		lease, err := acquire(ctx, name)
		if err != nil {
			return nil, err
		}
		return lease.Release, nil
	}), nil
}

func (c *pglockClient) Writer(ctx context.Context, n int) (func(context.Context) error, error) {
	lease, err := c.client.TryAcquire(ctx, fmt.Sprint("account/", n))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		add := func(ctx context.Context, tx pgx.Tx) error { return addOne(ctx, tx, n) }
		return c.store.Write(ctx, fencedstore.Fence{Lease: lease, SameToken: true}, add)
	}, nil
}

func (c *pglockClient) Expiry(ctx context.Context, d Death) (at time.Time, err error) {
	return at, c.pool.QueryRow(ctx, `SELECT expires_at FROM pglock.locks WHERE name = $1`, d.Name).Scan(&at)
}

func (c *pglockClient) Close(ctx context.Context) error {
	defer c.pool.Close()
	if c.client == nil {
		return nil
	}
	return c.client.Close(ctx)
}
