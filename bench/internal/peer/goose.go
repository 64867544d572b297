package peer

import (
	"context"
	"database/sql"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3/lock"
)

// Goose is the table locker of a migration tool, which holds one lock during the migrations.
func Goose() Kind {
	return Kind{
		Name: "goose", Server: Postgres,
		Is:       "goose's NewPostgresTableLocker over database/sql",
		Settings: "its defaults: lease 30 s, heartbeat 5 s; a Locker for each lock",
		Guarantees: Guarantees{
			Durable: "yes, flushed before the answer",
			Fair:    "no, callers ask again each 5 s",
			Token:   "no",
			Bound:   "lease",
		},
		In: []Workload{W1, W3, W4},
		Notes: map[Workload]string{
			W1: "made for one lock that is held for minutes: each Lock looks whether its table is there, and starts " +
				"a goroutine",
			W2: "left out: who waits asks each 5 s by default, and a rate of hand-overs would tell that interval and " +
				"nothing else",
			W3: "a goroutine and a statement for each lock each 5 s; not asked for 10,000",
			W4: "lease of 2 s and heartbeat of 0.6 s by its options; who waits asks each 5 s, its default",
		},
		MostLeases: 1000,
		OneProcess: true,
		Modules:    []string{"github.com/pressly/goose/v3"},
		Open:       openGoose,
	}
}

type gooseClient struct {
	*counter
	config Config
	pool   *pgxpool.Pool
	db     *sql.DB
	life   context.Context // of the heartbeats, which end with the context of Lock
	stop   context.CancelFunc
	mu     sync.Mutex
	locks  map[string]lock.Locker // by name; made once, as an application has them
}

func openGoose(ctx context.Context, c Config) (Client, error) {
	counted := newCounter(c)
	p, err := pool(ctx, c, counted, MostConnections)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDBFromPool(p)
	db.SetMaxIdleConns(0) // the pool below keeps them
	client := &gooseClient{counter: counted, config: c, pool: p, db: db, locks: make(map[string]lock.Locker)}
	client.life, client.stop = context.WithCancel(context.WithoutCancel(ctx))
	return client, nil
}

func (c *gooseClient) locker(name string) (lock.Locker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.locks[name]; l != nil {
		return l, nil
	}
	silent := slog.New(slog.NewTextHandler(io.Discard, nil))
	options := []lock.TableLockerOption{lock.WithTableLockID(number(name)), lock.WithTableLogger(silent)}
	if c.config.TTL < 30*time.Second {
		lease := max(time.Second, c.config.TTL) // it counts whole seconds
		options = append(options, lock.WithTableLeaseDuration(lease), lock.WithTableHeartbeatInterval(lease*3/10))
	}
	if c.config.Smoke {
		options = append(options, lock.WithTableLockTimeout(200*time.Millisecond, 100))
	}
	l, err := lock.NewPostgresTableLocker(options...)
	if err == nil {
		c.locks[name] = l
	}
	return l, err
}

// number is the lock's ID, which must be greater than zero.
func number(name string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return int64(h.Sum64()&math.MaxInt64 | 1)
}

// Caller cannot be told to stop waiting but by Close.
func (c *gooseClient) Caller(context.Context) (Caller, error) {
	return Func(func(_ context.Context, name string) (func(context.Context) error, error) {
		l, err := c.locker(name)
		if err != nil {
			return nil, err
		}
		if err := l.Lock(c.life, c.db); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return l.Unlock(ctx, c.db) }, nil
	}), nil
}

func (c *gooseClient) Expiry(ctx context.Context, d Death) (at time.Time, err error) {
	return at, c.pool.QueryRow(ctx, `SELECT lease_expires_at FROM goose_lock WHERE lock_id = $1`,
		number(d.Name)).Scan(&at)
}

func (c *gooseClient) Close(context.Context) error {
	c.stop()
	err := c.db.Close()
	c.pool.Close()
	return err
}
