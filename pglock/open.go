package pglock

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/protocol"
)

const (
	// openSize is how many connections the pool of Open has at most. Simultaneous calls share a statement, and waiting
	// calls hold no connection, so a few connections are enough for thousands of calls.
	openSize = 4
	// openIdle is how long a connection of that pool stays open without use.
	openIdle = 5 * time.Minute
)

// Open makes a client with its own small pool, for programs that reach PostgreSQL through database/sql, an ORM or
// another driver. If a program has a *pgxpool.Pool, it can call New instead and save these connections. The client does
// not depend on the application's own pool, which may be exhausted or closed.
//
// pgx reads the URL: a postgres:// URL or a string of keywords and values. Whatever the URL leaves out comes from the
// PG* variables, the password file and the service file; an empty URL leaves out everything. The pool has at most 4
// connections (pool_max_conns in the URL), opens them when it needs them, and closes each after 5 minutes without use
// (pool_max_conn_idle_time). pg_stat_activity shows them as "pglock host/program[pid]", unless the URL or PGAPPNAME
// sets an application_name.
//
// The client owns the pool and its goroutines, besides what New lists, and Close ends all of it. Open connects once,
// and checks that the schema is there and fits; ctx limits only that. After an error nothing is left open, but on a
// connection that is silent pgx may go on for up to 15 s, as after Close.
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
		return nil, failure.At(ctx, err, "pglock: start client") // of what pgx has read itself: it is never refused
	}
	c, err := New(ctx, pool, opts...)
	if err != nil {
		closePool(ctx, pool)
		return nil, err
	}
	c.pool = pool
	return c, nil
}

// parseURL returns the configuration of the pool of Open.
func parseURL(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, &ArgumentError{"url", unreadable(err), "be a connection string that pgx can read"}
	}
	// Parse the URL a second time, because pgxpool does not say whether the URL sets the size of the pool.
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

// unreadable says why pgx cannot read a connection string. It leaves out the string, and whatever pgx writes after a
// colon or in parentheses, because that may quote the password.
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
