package advisory_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// scene is a database with clients of a new release, and sessions of an old one.
type scene struct {
	t    *testing.T
	db   *pgtest.DB
	pool *pgxpool.Pool
	look *pgx.Conn
}

func newScene(t *testing.T) *scene {
	t.Helper()
	db := pgtest.Database(t)
	s := &scene{t, db, db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 8 }), db.Conn(t)}
	s.exec(`CREATE TEMP VIEW advisory_locks AS SELECT * FROM pg_locks WHERE locktype = 'advisory'
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	return s
}

// client is one process of the new release.
func (s *scene) client() *pglock.Client {
	s.t.Helper()
	return s.clientWith()
}

func (s *scene) clientWith(opts ...pglock.Option) *pglock.Client {
	s.t.Helper()
	c := must.Get(pglock.New(s.t.Context(), s.pool, opts...))(s.t)
	s.t.Cleanup(func() { _ = c.Close(context.WithoutCancel(s.t.Context())) })
	return c
}

func (s *scene) bridge() *advisory.Bridge {
	s.t.Helper()
	return s.bridgeOver(s.client(), advisory.Config{})
}

// bridgeBy has sessions that connect by the configuration.
func (s *scene) bridgeBy(c *pgx.ConnConfig) *advisory.Bridge {
	s.t.Helper()
	return s.bridgeOver(s.client(), advisory.Config{ConnConfig: c})
}

func (s *scene) bridgeOver(c *pglock.Client, config advisory.Config) *advisory.Bridge {
	s.t.Helper()
	b := must.Get(advisory.New(c, config))(s.t)
	return b
}

// hold takes both locks, and releases them at the end of the test if the test has not.
func (s *scene) hold(b *advisory.Bridge, name string, key advisory.Key, opts ...pglock.AcquireOption) *advisory.Held {
	s.t.Helper()
	h := must.Get(b.Acquire(s.t.Context(), name, key, opts...))(s.t)
	s.t.Cleanup(func() { _ = h.Release(context.WithoutCancel(s.t.Context())) })
	return h
}

// config leads to the scene's database by connections that are wrapped.
func (s *scene) config(wrap func(net.Conn) net.Conn) *pgx.ConnConfig {
	s.t.Helper()
	config := must.Get(pgx.ParseConfig(s.db.URL()))(s.t)
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
	return config
}

func (s *scene) exec(sql string, args ...any) {
	s.t.Helper()
	must.Get(s.look.Exec(s.t.Context(), sql, args...))(s.t)
}

func (s *scene) ask(sql string, args ...any) (yes bool) {
	s.t.Helper()
	must.Do(s.t, s.look.QueryRow(s.t.Context(), sql, args...).Scan(&yes))
	return yes
}

// eventually waits until the query answers true.
func (s *scene) eventually(what, sql string, args ...any) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !s.ask(sql, args...); {
		time.Sleep(2 * time.Millisecond) // between two looks
		if time.Now().After(deadline) {
			s.t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// An old is a session of the old release, with the SQL that such programs have.
type old struct {
	s    *scene
	conn *pgx.Conn
	key  string // as in SQL
}

func (s *scene) old(key string) *old { return &old{s, s.db.Conn(s.t), key} }

// holding is an old program that has the lock.
func (s *scene) holding(key string) *old {
	s.t.Helper()
	o := s.old(key)
	if !o.try() {
		s.t.Fatal("the lock is not free")
	}
	return o
}

func (o *old) pid() int32 { return int32(o.conn.PgConn().PID()) }

func (o *old) lock(ctx context.Context) error {
	_, err := o.conn.Exec(ctx, "SELECT pg_advisory_lock("+o.key+")")
	return err
}

func (o *old) try() (got bool) {
	o.s.t.Helper()
	if err := o.conn.QueryRow(o.s.t.Context(), "SELECT pg_try_advisory_lock("+o.key+")").Scan(&got); err != nil {
		o.s.t.Fatal(err)
	}
	return got
}

func (o *old) unlock(ctx context.Context) error {
	_, err := o.conn.Exec(ctx, "SELECT pg_advisory_unlock("+o.key+")")
	return err
}

// waiting locks in the background, and returns when the server has queued it.
func (o *old) waiting() (got <-chan error) {
	o.s.t.Helper()
	answer := make(chan error, 1)
	o.s.t.Cleanup(func() { _ = o.conn.Close(context.Background()) })
	go func() { answer <- o.lock(o.s.t.Context()) }()
	o.s.queued(o.pid())
	return answer
}

// queued returns when the backend waits for an advisory lock.
func (s *scene) queued(pid int32) {
	s.t.Helper()
	s.eventually("a backend to wait", "SELECT EXISTS (SELECT FROM advisory_locks WHERE pid = $1 AND NOT granted)", pid)
}

// bridgePID is the backend of the only bridge that has an advisory lock.
func (s *scene) bridgePID() (pid int32) {
	s.t.Helper()
	must.Do(s.t, s.look.QueryRow(s.t.Context(), "SELECT pid FROM advisory_locks WHERE granted").Scan(&pid))
	return pid
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %v in vain: %s", patience, what)
		panic("unreachable")
	}
}
