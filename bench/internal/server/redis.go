package server

import (
	"context"
	"os/exec"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

func startRedisMemory(ctx context.Context, _ Options) (*Running, error) {
	return startRedis(ctx, "--save", "", "--appendonly", "no")
}

func startRedisFlushed(ctx context.Context, _ Options) (*Running, error) {
	return startRedis(ctx, "--save", "", "--appendonly", "yes", "--appendfsync", "always")
}

func startRedis(ctx context.Context, settings ...string) (*Running, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	return onFreePorts(ctx, "redis", 1, func(folder string, ports []int) (*Running, error) {
		k, err := keep(order{
			Folder: folder, Program: program,
			Args: append([]string{"--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", folder,
				"--daemonize", "no"}, settings...),
		})
		if err != nil {
			return nil, err
		}
		r := &Running{Address: hostPort(ports[0]), Port: ports[0], PID: k.pid, Settings: readable(settings),
			stop: k.stop}
		client := redis.NewClient(&redis.Options{Addr: r.Address, MaxRetries: -1})
		defer client.Close()
		if err := k.await(ctx, func(ctx context.Context) error { return client.Ping(ctx).Err() }); err != nil {
			_ = k.stop()
			return nil, err
		}
		r.Version = "Redis " + infoField(ctx, client, "redis_version")
		return r, nil
	})
}

func readable(settings []string) string {
	var words []string
	for _, s := range settings {
		if s == "" {
			s = `""`
		}
		words = append(words, s)
	}
	return strings.Join(words, " ")
}

func infoField(ctx context.Context, client *redis.Client, field string) string {
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return "of an unknown version"
}
