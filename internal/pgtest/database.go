package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A DB is a database that belongs to one test.
type DB struct {
	name string
	url  string
}

// Database makes a database for the test: a copy of the template that the package gave with WithTemplate. It is dropped,
// whoever is still connected, when the test ends. The test fails when there is no server to be had.
func Database(tb testing.TB) *DB {
	tb.Helper()
	return newDatabase(tb, true)
}

// EmptyDatabase is Database without the migrations.
func EmptyDatabase(tb testing.TB) *DB {
	tb.Helper()
	return newDatabase(tb, false)
}

func newDatabase(tb testing.TB, migrated bool) *DB {
	tb.Helper()
	server := Server(tb)
	name := shared.name(shared.made.Add(1))
	// Registered first: the database may be there even when this fails.
	tb.Cleanup(func() {
		ctx, cancel := afterTest(tb)
		defer cancel()
		if err := shared.drop(ctx, name); err != nil {
			tb.Errorf("pgtest: drop the test's database: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(tb.Context(), databaseTimeout)
	defer cancel()
	if err := shared.make(ctx, name, migrated); err != nil {
		tb.Fatalf("pgtest: make a database: %v", err)
	}
	return &DB{name: name, url: withDatabase(server.URL(), name)}
}

// URL gives an Example, which has no testing.TB, the connection string of a database of its own, made as Database makes
// one. Main drops it. It panics when there is no server to be had.
func URL() string {
	if err := shared.get(); err != nil {
		panic(err)
	}
	name := shared.name(shared.made.Add(1))
	ctx, cancel := context.WithTimeout(shared.ctx, databaseTimeout)
	defer cancel()
	if err := shared.make(ctx, name, true); err != nil {
		panic(err)
	}
	return withDatabase(shared.server.URL(), name)
}

// Name is the database's name.
func (db *DB) Name() string { return db.name }

// URL is the database's connection string. It may hold a password.
func (db *DB) URL() string { return db.url }

// Pool opens a pool of connections to the database, after the changes to its configuration. It is closed when the test ends;
// the test fails when a connection has not been given back by then.
func (db *DB) Pool(tb testing.TB, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(db.url)
	if err != nil {
		tb.Fatalf("pgtest: pool: %v", err)
	}
	for _, f := range change {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(tb.Context()), config)
	if err != nil {
		tb.Fatalf("pgtest: pool: %v", err)
	}
	tb.Cleanup(func() { closePool(tb, pool) })
	return pool
}

// closePool does not wait for ever, as Close alone would, for a connection that is not given back; dropping the database
// then ends it.
func closePool(tb testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(databaseTimeout):
		tb.Errorf("pgtest: %d connections of a pool have not been given back %v after the test", pool.Stat().AcquiredConns(), databaseTimeout)
	}
}

// Conn opens a connection to the database, outside any pool. It is closed when the test ends.
func (db *DB) Conn(tb testing.TB) *pgx.Conn {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), databaseTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.url)
	if err != nil {
		tb.Fatalf("pgtest: connect: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := afterTest(tb)
		defer cancel()
		// The test may have broken the connection on purpose.
		_ = conn.Close(ctx)
	})
	return conn
}

// afterTest is for cleaning, when the test's own context has ended.
func afterTest(tb testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(tb.Context()), databaseTimeout)
}
