package peer

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The statements of an application with a hand-written lock: one upsert and one update, prepared by pgx. $1 name, $2
// holder, $3 session, $4 grant, $5 TTL; %[1]s becomes the table.
const (
	bareTry = `
		INSERT INTO bare.%[1]s AS l (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at)
		VALUES ($1, $2, $3::uuid, $4::uuid, nextval('bare.seq'), $5::interval,
			clock_timestamp(), clock_timestamp(), clock_timestamp() + $5::interval)
		ON CONFLICT (name) DO UPDATE SET holder = $2, session_id = $3::uuid, grant_id = $4::uuid,
			token = GREATEST(nextval('bare.seq'), l.token + 1), ttl = $5::interval, acquired_at = clock_timestamp(),
			renewed_at = clock_timestamp(), expires_at = clock_timestamp() + $5::interval
			WHERE l.expires_at <= clock_timestamp()
		RETURNING token`
	bareRelease = `
		UPDATE bare.%[1]s SET expires_at = '-infinity' WHERE name = $1 AND token = $2 AND grant_id = $3::uuid`
	bareReleaseAsync = `
		WITH s AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS x)
		UPDATE bare.%[1]s l SET expires_at = '-infinity' FROM s
		WHERE s.x IS NOT NULL AND l.name = $1 AND l.token = $2 AND l.grant_id = $3::uuid`
)

var bareGuarantees = Guarantees{
	Durable: "yes, flushed before the answer",
	Fair:    "no, callers would ask again",
	Token:   "yes, nothing checks it",
	Bound:   "lease, nothing renews it",
}

// BareSync is the statements of which each waits for the disk.
func BareSync() Kind {
	return Kind{
		Name: "bare-sync", Server: Postgres,
		Is:         "SQL over pgx, the release waits for the disk",
		Guarantees: bareGuarantees,
		In:         []Workload{W1},
		Settings:   poolSettings(),
		Open: func(ctx context.Context, c Config) (Client, error) {
			return openBare(ctx, c, "locks_sync", bareRelease)
		},
	}
}

// BareAsync is the same with a release that does not wait for the disk.
func BareAsync() Kind {
	return Kind{
		Name: "bare-async", Server: Postgres,
		Is:         "SQL over pgx, the release does not wait for the disk",
		Guarantees: bareGuarantees,
		In:         []Workload{W1, W6, W8},
		Notes:      map[Workload]string{W8: "one grant over each connection, one after the other, and no release"},
		Settings:   poolSettings(),
		Open: func(ctx context.Context, c Config) (Client, error) {
			return openBare(ctx, c, "locks_async", bareReleaseAsync)
		},
	}
}

type bareClient struct {
	*counter
	config       Config
	pool         *pgxpool.Pool
	session      string
	try, release string
}

func openBare(ctx context.Context, c Config, table, release string) (Client, error) {
	counted := newCounter(c)
	p, err := pool(ctx, c, counted, MostConnections)
	if err != nil {
		return nil, err
	}
	return &bareClient{counted, c, p, uuid.NewString(), fmt.Sprintf(bareTry, table), fmt.Sprintf(release, table)}, nil
}

// First does the same over a connection of its own.
func (c *bareClient) First(ctx context.Context, name string) (First, error) {
	return first(ctx, c.config, c.counter, name, func(p *pgxpool.Pool) (Client, error) {
		return &bareClient{c.counter, c.config, p, uuid.NewString(), c.try, c.release}, nil
	})
}

func (c *bareClient) Caller(context.Context) (Caller, error) {
	return Func(func(ctx context.Context, name string) (func(context.Context) error, error) {
		var token int64
		grantID := uuid.NewString()
		if err := c.pool.QueryRow(ctx, c.try, name, "bench", c.session, grantID,
			c.config.TTL).Scan(&token); err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				err = errHeld(name)
			}
			return nil, err
		}
		return func(ctx context.Context) error {
			tag, err := c.pool.Exec(ctx, c.release, name, token, grantID)
			if err == nil && tag.RowsAffected() != 1 {
				err = errLost(name)
			}
			return err
		}, nil
	}), nil
}

func (c *bareClient) Close(context.Context) error {
	c.pool.Close()
	return nil
}

func errHeld(name string) error { return fmt.Errorf("lock %s is held", name) }
func errLost(name string) error { return fmt.Errorf("lock %s was lost before its release", name) }
