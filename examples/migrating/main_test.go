package migrating_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// scene is a database with a report of no pages.
type scene struct {
	t     *testing.T
	pool  *pgxpool.Pool
	store *fencedstore.Store
}

func newScene(t *testing.T, schemas ...string) *scene {
	t.Helper()
	pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) { c.MaxConns = 10 })
	for _, sql := range append(schemas, report.Schema, "INSERT INTO reports VALUES ('nightly', 0)") {
		must.Get(pool.Exec(t.Context(), sql))(t)
	}
	return &scene{t, pool, fencedstore.New(pool)}
}

// client is one process of a new release.
func (s *scene) client() *pglock.Client {
	s.t.Helper()
	c, err := pglock.New(s.t.Context(), s.pool)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close(context.WithoutCancel(s.t.Context())) })
	return c
}

func (s *scene) pages() (pages int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), "SELECT pages FROM reports").Scan(&pages); err != nil {
		s.t.Fatal(err)
	}
	return pages
}

func newRedis(t *testing.T) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// newEtcd starts etcd in this process.
func newEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = t.TempDir()
	config.LogLevel, config.LogOutputs = "fatal", []string{"stderr"}
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.ListenPeerUrls = free, free
	config.UnsafeNoFsync = true
	server := must.Get(embed.StartEtcd(config))(t)
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("etcd does not get ready")
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{server.Clients[0].Addr().String()}, Logger: zap.NewNop(), DialTimeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}
