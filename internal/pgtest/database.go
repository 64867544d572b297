package pgtest

import (
	"context"
	"net/url"
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

// Database makes a database for the test: a copy of the template that the
// package gave with WithTemplate. It is dropped, whoever is still connected,
// when the test ends. The test fails when there is no server to be had.
func Database(tb testing.TB) *DB {
	tb.Helper()
	Server(tb)
	template, err := shared.migrated()
	if err != nil {
		tb.Fatal(err)
	}
	return newDatabase(tb, template)
}

// EmptyDatabase is Database without the migrations.
func EmptyDatabase(tb testing.TB) *DB {
	tb.Helper()
	Server(tb)
	return newDatabase(tb, pristine)
}

func newDatabase(tb testing.TB, template string) *DB {
	tb.Helper()
	name := shared.databases.next()
	ctx, cancel := context.WithTimeout(tb.Context(), databaseTimeout)
	defer cancel()
	// Registered first: the database may be there even when this fails.
	tb.Cleanup(func() {
		ctx, cancel := afterTest(tb)
		defer cancel()
		if err := shared.drop(ctx, name); err != nil {
			tb.Errorf("pgtest: drop the test's database: %v", err)
		}
	})
	if err := shared.create(ctx, name, template); err != nil {
		tb.Fatal(err)
	}
	return &DB{name: name, url: shared.urlOf(name)}
}

// Name is the database's name.
func (db *DB) Name() string { return db.name }

// URL is the database's connection string. It may hold a password.
func (db *DB) URL() string { return db.url }

// Pool opens a pool of connections to the database, after the changes to its
// configuration. It is closed when the test ends; the test fails when a
// connection has not been given back by then.
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

// closePool does not wait for ever, as Close alone would, for a connection that
// is not given back; dropping the database then ends it.
func closePool(tb testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	late := time.NewTimer(databaseTimeout)
	defer late.Stop()
	select {
	case <-closed:
	case <-late.C:
		tb.Errorf("pgtest: %d connections of a pool have not been given back %v after the test", pool.Stat().AcquiredConns(), databaseTimeout)
	}
}

// Conn opens a connection to the database, outside any pool. It is closed when
// the test ends.
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

// withDatabase replaces the database in a connection string of either form.
func withDatabase(connString, name string) string {
	u, err := url.Parse(connString)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// Of a keyword that occurs twice the last one counts.
		return connString + " dbname=" + name
	}
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	u.Path = "/" + name
	u.RawPath = ""
	return u.String()
}
