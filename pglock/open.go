package pglock

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/protocol"
)

const (
	// openSize is how many connections the pool of Open has at most. Calls that come at the same time share a
	// statement, and calls that wait hold no connection, so that a few are enough for thousands of calls.
	openSize = 4
	// openIdle is how long a connection of that pool stays open without use.
	openIdle = 5 * time.Minute
)

// Open makes a client with a small pool of its own, for programs that reach PostgreSQL through database/sql, an ORM or
// another driver. A program that has a *pgxpool.Pool calls New instead, and saves these connections. The application's
// own pool may be used up or closed: the client does not depend on it.
//
// pgx reads the URL: a postgres:// URL or a string of keywords and values. What it leaves out comes from the PG*
// variables, the password file and the service file, and an empty URL leaves out everything. The pool has at most 4
// connections (pool_max_conns in the URL changes that), opens them when they are needed, and closes each after 5
// minutes without use (pool_max_conn_idle_time). They appear in pg_stat_activity as "pglock host/program[pid]", unless
// the URL or PGAPPNAME has an application_name.
//
// The client owns the pool and its goroutines, besides what New lists, and Close ends all of it. Open connects once, and
// asks whether the schema is there and fits; ctx bounds that alone. After an error nothing is left open.
//
// Errors are those of New. If pgx cannot read the URL, the error is ErrInvalid and contains neither the URL nor a
// password.
func Open(ctx context.Context, url string, opts ...Option) (*Client, error) {
	config, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err // of a configuration that pgx has made itself: it is never refused
	}
	c, err := New(ctx, pool, opts...)
	if err != nil {
		pool.Close()
		return nil, err
	}
	c.pool = pool
	return c, nil
}

// parseURL gives the configuration of the pool of Open.
func parseURL(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, &ArgumentError{"url", unreadable(err), "be a connection string that pgx can read"}
	}
	// The same once more, for what pgxpool does not tell: whether the URL sets the size of the pool.
	settings, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, &ArgumentError{"url", unreadable(err), "be a connection string that pgx can read"}
	}
	if settings.RuntimeParams["pool_max_conns"] == "" {
		config.MaxConns = max(openSize, config.MinConns, config.MinIdleConns)
	}
	if settings.RuntimeParams["pool_max_conn_idle_time"] == "" {
		config.MaxConnIdleTime = openIdle
	}
	argument.NameApplication(config.ConnConfig.RuntimeParams)
	protocol.ObserveCommits(config.ConnConfig)
	return config, nil
}

// unreadable says why pgx cannot read a connection string. It leaves the string out, and what pgx puts behind a colon or
// in parentheses, which may quote a part: nobody knows which part was meant to be the password.
func unreadable(err error) string {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return "unreadable"
	}
	nameless := *parse
	nameless.ConnString = ""
	text := strings.TrimPrefix(nameless.Error(), "cannot parse ``: ")
	text, _, _ = strings.Cut(text, " (")
	text, _, _ = strings.Cut(text, ": ")
	return "unreadable (" + text + ")"
}
