package peer

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Starter is a Client that can start anew, like a program that starts, takes one lock and ends (W6).
type Starter interface {
	// First opens a new pool and client, and acquires. First.End ends what it returns.
	First(ctx context.Context, name string) (First, error)
}

// First is the first grant of a new connection.
type First struct {
	Connected time.Time // authenticated, and no statement sent yet
	Granted   time.Time
	End       func(ctx context.Context) error // releases, and closes what was opened
}

// freshPool opens a pool of one connection that its first use makes. connected says when that was; read it after
// that.
func freshPool(ctx context.Context, c Config, counted *counter) (p *pgxpool.Pool, connected *time.Time, err error) {
	config, err := poolConfig(c, counted, 1)
	if err != nil {
		return nil, nil, err
	}
	config.MinConns = 0
	connected = new(time.Time)
	config.AfterConnect = func(context.Context, *pgx.Conn) error {
		*connected = time.Now()
		return nil
	}
	p, err = pgxpool.NewWithConfig(ctx, config)
	return p, connected, err
}

// first acquires by what open makes over a fresh pool.
func first(ctx context.Context, c Config, counted *counter, name string,
	open func(*pgxpool.Pool) (Client, error)) (First, error) {
	p, connected, err := freshPool(ctx, c, counted)
	if err != nil {
		return First{}, err
	}
	client, err := open(p)
	if err != nil {
		p.Close()
		return First{}, err
	}
	abandon := func(err error) (First, error) {
		return First{}, errors.Join(err, client.Close(context.WithoutCancel(ctx)))
	}
	caller, err := client.Caller(ctx)
	if err != nil {
		return abandon(err)
	}
	release, err := caller.Acquire(ctx, name)
	granted := time.Now()
	if err != nil {
		return abandon(err)
	}
	return First{*connected, granted, func(ctx context.Context) error {
		return errors.Join(release(ctx), client.Close(ctx))
	}}, nil
}
