package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The statements of a hand-written queue with hand-over: a ticket that is written under the lock's row, a release
// that grants in the same statement, and a notification in a later transaction that does not wait for the disk.
const (
	queueRow = `
		INSERT INTO bare.locks_queue (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at)
		VALUES ($1, '', $2::uuid, $2::uuid, nextval('bare.seq'), '0', clock_timestamp(), clock_timestamp(), '-infinity')
		ON CONFLICT DO NOTHING`
	queueAsk = `
		WITH s AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS x),
		l AS MATERIALIZED (SELECT k.name, k.expires_at FROM s, bare.locks_queue k WHERE s.x IS NOT NULL AND k.name = $1 FOR SHARE OF k)
		INSERT INTO bare.waiters (name, grant_id, session_id, holder, ttl, enqueued_at)
		SELECT name, $2::uuid, $3::uuid, $4, $5::interval, clock_timestamp() FROM l
		RETURNING (SELECT expires_at > clock_timestamp() FROM l)`
	queueHandOver = `
		WITH s AS MATERIALIZED (
			SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
				THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS x),
		mine AS MATERIALIZED (
			SELECT k.name FROM s, bare.locks_queue k WHERE s.x IS NOT NULL AND k.name = $1
				AND (k.token = $2 AND k.grant_id = $3::uuid AND k.expires_at > clock_timestamp() OR k.expires_at <= clock_timestamp())
			FOR UPDATE OF k),
		next AS MATERIALIZED (SELECT w.name, w.ticket FROM mine m JOIN bare.waiters w ON w.name = m.name ORDER BY w.ticket LIMIT 1),
		gone AS (DELETE FROM bare.waiters w USING next n WHERE w.name = n.name AND w.ticket = n.ticket RETURNING w.*)
		UPDATE bare.locks_queue l SET
			holder = coalesce(g.holder, l.holder), session_id = coalesce(g.session_id, l.session_id),
			grant_id = coalesce(g.grant_id, l.grant_id),
			token = CASE WHEN g.name IS NULL THEN l.token ELSE GREATEST(nextval('bare.seq'), l.token + 1) END,
			ttl = coalesce(g.ttl, l.ttl), renewed_at = clock_timestamp(),
			acquired_at = CASE WHEN g.name IS NULL THEN l.acquired_at ELSE clock_timestamp() END,
			expires_at = coalesce(clock_timestamp() + g.ttl, '-infinity')
		FROM mine m LEFT JOIN gone g ON true WHERE l.name = m.name
		RETURNING g.session_id::text, g.grant_id::text, l.token`
	queueNotify = `SELECT pg_notify($1, $2)::text, set_config('synchronous_commit', 'off', true)`
)

// BareHandOver is that queue, with one connection for each process that listens.
func BareHandOver() Kind {
	return Kind{
		Name: "bare-handover", Server: Postgres,
		Is:       "SQL over pgx, a queue with NOTIFY and one listener for each process",
		In:       []Workload{W2},
		Settings: poolSettings(),
		Guarantees: Guarantees{
			Durable: "yes, flushed before the answer",
			Fair:    "yes, a queue on the server",
			Token:   "yes, nothing checks it",
			Bound:   "lease, nothing renews it",
		},
		Open: openHandOver,
	}
}

type handOverClient struct {
	*counter
	config  Config
	pool    *pgxpool.Pool
	session string
	mu      sync.Mutex
	waiting map[string]chan int64 // by grant ID; gets the token
	stop    context.CancelFunc
	stopped chan struct{}
}

func openHandOver(ctx context.Context, c Config) (Client, error) {
	counted := newCounter(c)
	p, err := pool(ctx, c, counted, MostConnections)
	if err != nil {
		return nil, err
	}
	client := &handOverClient{
		counter: counted, config: c, pool: p, session: uuid.NewString(),
		waiting: make(map[string]chan int64), stopped: make(chan struct{}),
	}
	conn, err := pgx.ConnectConfig(ctx, p.Config().ConnConfig)
	if err == nil {
		_, err = conn.Exec(ctx, `LISTEN "`+client.session+`"`)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	ctx, client.stop = context.WithCancel(context.WithoutCancel(ctx))
	go client.listen(ctx, conn)
	return client, nil
}

func (c *handOverClient) listen(ctx context.Context, conn *pgx.Conn) {
	defer close(c.stopped)
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the end
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return
		}
		var grantID string
		var token int64
		_, _ = fmt.Sscan(n.Payload, &grantID, &token)
		c.mu.Lock()
		if got := c.waiting[grantID]; got != nil {
			got <- token
		}
		c.mu.Unlock()
	}
}

func (c *handOverClient) Caller(context.Context) (Caller, error) { return Func(c.acquire), nil }

func (c *handOverClient) acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	grantID, got := uuid.NewString(), make(chan int64, 1)
	c.mu.Lock()
	c.waiting[grantID] = got
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, grantID)
		c.mu.Unlock()
	}()
	var held bool
	err := c.pool.QueryRow(ctx, queueAsk, name, grantID, c.session, "bench", c.config.TTL).Scan(&held)
	if errors.Is(err, pgx.ErrNoRows) { // the first use of the lock
		if _, err := c.pool.Exec(ctx, queueRow, name, c.session); err != nil {
			return nil, err
		}
		err = c.pool.QueryRow(ctx, queueAsk, name, grantID, c.session, "bench", c.config.TTL).Scan(&held)
	}
	if err != nil {
		return nil, err
	}
	if !held {
		if err := c.handOver(ctx, name, 0, uuid.NewString()); err != nil {
			return nil, err
		}
	}
	select {
	case token := <-got:
		return func(ctx context.Context) error { return c.handOver(ctx, name, token, grantID) }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// handOver releases the lease and grants to the next. It does not see a caller that queued while the statement waited
// for the row. So if it finds nobody it looks again.
func (c *handOverClient) handOver(ctx context.Context, name string, token int64, grantID string) error {
	for range 2 {
		var session, next *string
		err := c.pool.QueryRow(ctx, queueHandOver, name, token, grantID).Scan(&session, &next, &token)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if session != nil {
			_, err = c.pool.Exec(ctx, queueNotify, *session, fmt.Sprint(*next, " ", token))
			return err
		}
	}
	return nil
}

func (c *handOverClient) Close(context.Context) error {
	c.stop()
	<-c.stopped
	c.pool.Close()
	return nil
}
