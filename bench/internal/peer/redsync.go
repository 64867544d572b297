package peer

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// Redsync is the Redlock algorithm, here on one server.
func Redsync(name string, server Server, in ...Workload) Kind {
	return Kind{
		Name: name, Server: server,
		Is: "go-redsync/redsync, " + string(server),
		Settings: "one server; who waits asks each 50 to 250 ms, its default, for any number of tries; " +
			"go-redis's default pool",
		Guarantees: Guarantees{
			Durable: durable(server),
			Fair:    "no, callers ask again",
			Token:   "no",
			Bound:   "lease, the caller renews it",
		},
		In:      in,
		Notes:   notes(in, map[Workload]string{W2: oneTakesAll, W4: "the key's PTTL, asked after the kill"}),
		Modules: []string{"github.com/go-redsync/redsync/v4", "github.com/redis/go-redis/v9"},
		Open:    openRedsync,
	}
}

type redsyncClient struct {
	*counter
	config Config
	redis  *redis.Client
	sync   *redsync.Redsync
}

func openRedsync(ctx context.Context, c Config) (Client, error) {
	counted := newCounter(c)
	client, err := openRedis(ctx, c, counted)
	if err != nil {
		return nil, err
	}
	return &redsyncClient{counted, c, client, redsync.New(goredis.NewPool(client))}, nil
}

func (c *redsyncClient) Caller(context.Context) (Caller, error) {
	return Func(func(ctx context.Context, name string) (func(context.Context) error, error) {
		m := c.sync.NewMutex(name, redsync.WithExpiry(c.config.TTL), redsync.WithTries(math.MaxInt))
		lock := m.TryLockContext
		if c.config.waits() {
			lock = m.LockContext
		}
		if err := lock(ctx); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			ok, err := m.UnlockContext(ctx)
			if err == nil && !ok {
				err = errors.New("redsync: unlock failed")
			}
			return err
		}, nil
	}), nil
}

// Expiry is what the key has left, now.
func (c *redsyncClient) Expiry(ctx context.Context, d Death) (time.Time, error) {
	return keyExpiry(ctx, c.redis, d.Name)
}

func (c *redsyncClient) Close(context.Context) error { return c.redis.Close() }
