package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// Redislock is a lease-lock library on Redis. A waiting caller polls: every 100 ms in its documentation's example,
// and no faster than every 16 ms by its advice.
func Redislock(name string, server Server, again time.Duration, in ...Workload) Kind {
	return Kind{
		Name: name, Server: server,
		Is:       "bsm/redislock, " + string(server),
		Settings: fmt.Sprintf("who waits asks each %v; go-redis's default pool", again),
		Guarantees: Guarantees{
			Durable: durable(server),
			Fair:    "no, callers ask again",
			Token:   "no",
			Bound:   "lease, the caller renews it",
		},
		In: in,
		Notes: notes(in, map[Workload]string{
			W2: oneTakesAll,
			W3: "a goroutine for each lock calls Refresh each third of the TTL",
			W4: "the key's PTTL, asked after the kill",
		}),
		Modules: []string{"github.com/bsm/redislock", "github.com/redis/go-redis/v9"},
		Open:    func(ctx context.Context, c Config) (Client, error) { return openRedislock(ctx, c, again) },
	}
}

type redislockClient struct {
	*counter
	config  Config
	again   time.Duration
	redis   *redis.Client
	locks   *redislock.Client
	renews  sync.WaitGroup
	stop    context.CancelFunc
	life    context.Context
	mu      sync.Mutex
	failure error // the first, of a renewal
}

func openRedislock(ctx context.Context, c Config, again time.Duration) (Client, error) {
	counted := newCounter(c)
	client, err := openRedis(ctx, c, counted)
	if err != nil {
		return nil, err
	}
	l := &redislockClient{counter: counted, config: c, again: again, redis: client, locks: redislock.New(client)}
	l.life, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	return l, nil
}

func (c *redislockClient) Caller(context.Context) (Caller, error) {
	return Func(func(ctx context.Context, name string) (func(context.Context) error, error) {
		var options *redislock.Options
		if c.config.waits() {
			options = &redislock.Options{RetryStrategy: redislock.LinearBackoff(c.again)}
		}
		l, err := c.locks.Obtain(ctx, name, c.config.TTL, options)
		if err != nil {
			return nil, err
		}
		return l.Release, nil
	}), nil
}

// Hold takes each lock and has a goroutine of its own renew it.
func (c *redislockClient) Hold(ctx context.Context, names []string) error {
	for _, name := range names {
		l, err := c.locks.Obtain(ctx, name, c.config.TTL, nil)
		if err != nil {
			return err
		}
		c.renews.Go(func() { c.renew(l) })
	}
	return nil
}

func (c *redislockClient) renew(l *redislock.Lock) {
	tick := time.NewTicker(c.config.TTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.life.Done():
			return
		}
		if err := l.Refresh(c.life, c.config.TTL, nil); err != nil && c.life.Err() == nil {
			c.mu.Lock()
			if c.failure == nil {
				c.failure = fmt.Errorf("refresh %s: %w", l.Key(), err)
			}
			c.mu.Unlock()
			return
		}
	}
}

// Expiry is what the key has left, now.
func (c *redislockClient) Expiry(ctx context.Context, d Death) (time.Time, error) {
	return keyExpiry(ctx, c.redis, d.Name)
}

func (c *redislockClient) Close(context.Context) error {
	c.stop()
	c.renews.Wait()
	return errors.Join(c.failure, c.redis.Close())
}

func keyExpiry(ctx context.Context, client *redis.Client, key string) (time.Time, error) {
	left, err := client.PTTL(ctx, key).Result()
	if err == nil && left < 0 {
		err = fmt.Errorf("key %s: PTTL is %d", key, left)
	}
	return time.Now().Add(left), err
}
