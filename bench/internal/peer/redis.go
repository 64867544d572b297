package peer

import (
	"context"
	"maps"
	"net"
	"slices"

	"github.com/redis/go-redis/v9"
)

// openRedis makes a go-redis client with its defaults (a pool of ten connections per core), whose commands are
// counted.
func openRedis(ctx context.Context, c Config, counted *counter) (*redis.Client, error) {
	client := redis.NewClient(&redis.Options{Addr: c.Address})
	client.AddHook(redisHook{counted})
	if err := client.Ping(ctx).Err(); err != nil {
		_ = client.Close()
		return nil, err
	}
	return client, nil
}

type redisHook struct{ counted *counter }

func (h redisHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h redisHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.counted.add(1)
		return next(ctx, cmd)
	}
}

func (h redisHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.counted.add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// notes are those of the workloads that one takes part in.
func notes(in []Workload, all map[Workload]string) map[Workload]string {
	maps.DeleteFunc(all, func(w Workload, _ string) bool { return !slices.Contains(in, w) })
	return all
}

// oneTakesAll is the note to W2 of those who ask again.
const oneTakesAll = "who has released the lock takes it again at once, while the others sleep: the rate is that of " +
	"one caller, see most/least served"

// durable says what becomes of a grant when the server crashes.
func durable(server Server) string {
	if server == RedisFlushed {
		return "yes, flushed before the answer"
	}
	return "no, held in memory"
}
