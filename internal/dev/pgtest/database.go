package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// databaseTimeout limits each creation and drop of a database.
const databaseTimeout = 30 * time.Second

// pristine is the server's own template to which nobody can connect.
const pristine = "template0"

// A DB is a database for one test.
type DB struct {
	name string
	url  string

	mu   sync.Mutex
	look *pgx.Conn // of Look; nil until it is needed
}

// Database makes a database for the test: a copy of the package's template (WithTemplate). It is dropped when the
// test ends, whoever is still connected. The test fails if there is no server.
func Database(tb testing.TB) *DB {
	tb.Helper()
	return newDatabase(tb, true)
}

// EmptyDatabase is Database without the migrations.
func EmptyDatabase(tb testing.TB) *DB {
	tb.Helper()
	return newDatabase(tb, false)
}

// Parallel is Database for a test that is parallel from here on.
func Parallel(t *testing.T) *DB {
	t.Helper()
	t.Parallel()
	return newDatabase(t, true)
}

// EmptyParallel is EmptyDatabase for a test that is parallel from here on.
func EmptyParallel(t *testing.T) *DB {
	t.Helper()
	t.Parallel()
	return newDatabase(t, false)
}

// One reads one value.
func One[T any](tb testing.TB, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) (v T) {
	tb.Helper()
	if err := db.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

func newDatabase(tb testing.TB, migrated bool) *DB {
	tb.Helper()
	db, err := shared.database(tb.Context(), migrated)
	if db != nil { // it may exist even if this failed
		tb.Cleanup(func() {
			ctx, cancel := afterTest(tb)
			defer cancel()
			if err := shared.drop(ctx, db.name); err != nil {
				tb.Errorf("pgtest: drop the test's database: %v", err)
			}
		})
	}
	if err != nil {
		tb.Fatal(err)
	}
	return db
}

// EncodedDatabase is Database in another encoding than UTF-8, which its connections speak nevertheless.
func EncodedDatabase(tb testing.TB, encoding string) *DB {
	tb.Helper()
	db := newDatabase(tb, false)
	ctx, cancel := context.WithTimeout(tb.Context(), databaseTimeout)
	defer cancel()
	for _, sql := range []string{
		"drop database " + quote(db.name),
		"create database " + quote(db.name) + " template " + pristine + " encoding " + quote(encoding) +
			" lc_collate 'C' lc_ctype 'C'",
		"alter database " + quote(db.name) + " set client_encoding = 'UTF8'",
	} {
		if _, err := shared.admin.Exec(ctx, sql); err != nil {
			tb.Fatalf("pgtest: make a database in %s: %v", encoding, err)
		}
	}
	if err := shared.migrate(ctx, db.url); err != nil {
		tb.Fatalf("pgtest: migrate a database in %s: %v", encoding, err)
	}
	return db
}

// URL returns the connection string of a new database, made as Database makes one, for an Example, which has no
// testing.TB. Main drops it. URL panics if there is no server.
func URL() string {
	db, err := shared.database(shared.ctx, true)
	if err != nil {
		panic(err)
	}
	return db.url
}

// Name is the database's name.
func (db *DB) Name() string { return db.name }

// URL is the database's connection string. It may hold a password.
func (db *DB) URL() string { return db.url }

// Pool opens a pool of connections to the database, with the changes to its configuration. It is closed when the test
// ends; the test fails if a connection has not been given back by then.
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
	tb.Cleanup(func() {
		late := func() { panic("pgtest: " + tb.Name() + " has not given back the connections of a pool") }
		defer time.AfterFunc(databaseTimeout, late).Stop()
		pool.Close()
	})
	return pool
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

// Look calls f with a connection that all such calls of the test share, one after the other: each statement alone,
// which leaves nothing in the session. It is closed when the test ends.
func (db *DB) Look(tb testing.TB, f func(*pgx.Conn)) {
	tb.Helper()
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.look == nil || db.look.IsClosed() { // the test may have ended its session
		db.look = db.Conn(tb)
	}
	f(db.look)
}

// afterTest returns a context for cleaning up after the test's own has ended.
func afterTest(tb testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(tb.Context()), databaseTimeout)
}

// database makes a copy of the database that the package has migrated, or of an empty one.
func (c *cluster) database(ctx context.Context, migrated bool) (*DB, error) {
	if err := c.get(); err != nil {
		return nil, err
	}
	template := pristine
	if migrated && c.migrate != nil {
		template = c.name("template")
		c.migrated.Do(func() { c.migrateErr = c.makeTemplate(template) })
		if c.migrateErr != nil {
			return nil, fmt.Errorf("pgtest: make the template: %w", c.migrateErr)
		}
	}
	defer c.room.enter(ctx)()
	name := c.name(c.made.Add(1))
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if err := c.copy(ctx, template, name); err != nil {
		return &DB{name: name}, fmt.Errorf("pgtest: make a database: %w", err)
	}
	return &DB{name: name, url: withDatabase(c.server.URL(), name)}, nil
}

// makeTemplate ends by forbidding connections to the template: a database cannot be copied while somebody is
// connected.
func (c *cluster) makeTemplate(name string) error {
	ctx, cancel := context.WithTimeout(c.ctx, databaseTimeout)
	defer cancel()
	err := c.copy(ctx, pristine, name)
	if err == nil {
		err = c.migrate(ctx, withDatabase(c.server.URL(), name))
	}
	if err == nil {
		_, err = c.admin.Exec(ctx, "alter database "+quote(name)+" allow_connections false")
	}
	if err == nil {
		_, err = c.admin.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
	}
	return err
}

// copy is refused while somebody is connected to the template, for example the server's own housekeeping. It is
// repeated until ctx ends.
func (c *cluster) copy(ctx context.Context, template, name string) error {
	sql := "create database " + quote(name) + " template " + quote(template)
	if !c.old {
		sql += " strategy file_copy" // a throwaway server needs no copy in its log
	}
	for {
		_, err := c.admin.Exec(ctx, sql)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "55006" && ctx.Err() == nil {
			continue // object_in_use; the server itself waits five seconds first
		}
		return err
	}
}

func (c *cluster) drop(ctx context.Context, name string) error {
	_, err := c.admin.Exec(ctx, "drop database if exists "+quote(name)+" with (force)")
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// withDatabase replaces the database in a connection string of either form.
func withDatabase(connString, name string) string {
	u, err := url.Parse(connString)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return connString + " dbname=" + name // of a repeated keyword the last one counts
	}
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	u.Path, u.RawPath = "/"+name, ""
	return u.String()
}
