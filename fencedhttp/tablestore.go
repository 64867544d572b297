package fencedhttp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// attempts limits how often a statement is repeated that the server has undone because of another one.
const attempts = 20

// TableStore is a TokenStore in a table of the service's own PostgreSQL, for any number of processes. Its answers are
// on disk, whatever synchronous_commit the session has. Create makes the table:
//
//	CREATE TABLE fencing_tokens (
//	  resource    text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND 512),
//	  token       bigint      NOT NULL CHECK (token > 0),
//	  advanced_at timestamptz NOT NULL DEFAULT clock_timestamp()
//	) WITH (fillfactor = 50);
//
// The user needs SELECT, INSERT and UPDATE on it. A token that was seen before is only read, not written. Where
// synchronous_standby_names is set the standby need not have it yet, so its COMMIT waits for the standby, too. There
// give the pool's configuration to pglock.ObserveCommits, so that a cancelled wait is an error of Advance, and no
// answer. Deleting a row reopens the fence for stale tokens. Use NewTableStore to make one. It is safe for concurrent
// use; the pool stays the caller's.
type TableStore struct {
	pool    *pgxpool.Pool
	table   string // quoted
	advance string
}

// NewTableStore makes a store over a table, given by its name alone, as in pgx.Identifier{"fencing_tokens"}, or with
// its schema. Errors: pglock.ErrInvalid.
func NewTableStore(pool *pgxpool.Pool, table pgx.Identifier) (*TableStore, error) {
	if pool == nil {
		return nil, refuse.Nil("pool", "be a *pgxpool.Pool")
	}
	if len(table) != 1 && len(table) != 2 {
		return nil, refuse.Invalid("table", fmt.Sprintf("of %d parts", len(table)), "be a name, or a schema and a name")
	}
	for _, part := range table {
		if part == "" || len(part) > 63 || strings.IndexByte(part, 0) >= 0 {
			return nil, refuse.Invalid("table", argument.Shorten(part), "have parts of 1 to 63 bytes without NUL")
		}
	}
	name := table.Sanitize()
	return &TableStore{pool: pool, table: name, advance: strings.ReplaceAll(advanceSQL, "{{table}}", name)}, nil
}

// advanceSQL reads the token, and writes only if the given one is greater: to the row as it is then, after whatever
// wait. If another statement has written a greater token meanwhile, GREATEST keeps and returns it. Where a standby may
// be waited for, which need not have the token that is there, a message in the log makes the COMMIT wait for it, and
// locks no row. The server reports a wait that was cancelled by a warning, which no setting may silence. The joins make
// the server evaluate all that.
const advanceSQL = `
WITH seen AS MATERIALIZED (
  SELECT t.token FROM {{table}} t WHERE t.resource OPERATOR(pg_catalog.=) $1::pg_catalog.text
), durable AS MATERIALIZED (
  SELECT pg_catalog.set_config('synchronous_commit',
           CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY (ARRAY['off', 'local'])
                THEN 'on' ELSE pg_catalog.current_setting('synchronous_commit') END, true) AS mode,
         CASE WHEN pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'error'
              THEN pg_catalog.set_config('client_min_messages', 'warning', true) ELSE '' END AS told
  WHERE NOT EXISTS (SELECT FROM seen WHERE seen.token OPERATOR(pg_catalog.>) $2::pg_catalog.int8
    OR seen.token OPERATOR(pg_catalog.=) $2::pg_catalog.int8
       AND pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.=) '')
), written AS (
  INSERT INTO {{table}} AS t (resource, token, advanced_at)
    SELECT $1::pg_catalog.text, $2::pg_catalog.int8, pg_catalog.clock_timestamp() FROM durable
      WHERE durable.mode IS NOT NULL AND durable.told IS NOT NULL
        AND NOT EXISTS (SELECT FROM seen WHERE seen.token OPERATOR(pg_catalog.=) $2::pg_catalog.int8)
    ON CONFLICT (resource) DO UPDATE SET token = GREATEST(t.token, EXCLUDED.token), advanced_at = pg_catalog.clock_timestamp()
    RETURNING t.token
), awaited AS MATERIALIZED (
  SELECT pg_catalog.pg_logical_emit_message(true, 'pglock', ''::pg_catalog.text) AS place FROM durable
  WHERE durable.mode IS NOT NULL AND durable.told IS NOT NULL
    AND EXISTS (SELECT FROM seen WHERE seen.token OPERATOR(pg_catalog.=) $2::pg_catalog.int8)
)
SELECT written.token FROM written
UNION ALL SELECT seen.token FROM seen
  WHERE NOT EXISTS (SELECT FROM written) AND (SELECT pg_catalog.count(awaited.place) FROM awaited) OPERATOR(pg_catalog.>=) 0`

// Advance implements TokenStore. Errors: pglock.ErrInvalid, ctx's error, or the server's failure.
func (s *TableStore) Advance(ctx context.Context, resource string, token pglock.Token) (pglock.Token, error) {
	if err := checkAdvance(resource, token); err != nil {
		return 0, err
	}
	var last int64
	err := repeat(ctx, func() error {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		_ = protocol.Unconfirmed(conn.Conn()) // of an earlier commit
		err = conn.QueryRow(ctx, s.advance, resource, int64(token)).Scan(&last)
		if err == nil && protocol.Unconfirmed(conn.Conn()) {
			err = protocol.ErrUnconfirmed
		}
		return err
	}, "40001", "40P01") // a default isolation above READ COMMITTED, a circle with the service's own statements
	if err != nil {
		return 0, failure.At(ctx, err, "fencedhttp: table %s", s.table)
	}
	return pglock.Token(last), nil
}

// Create makes the table if none is found by its name; otherwise the user needs no right to make one. Its schema must
// exist. Any number of processes may call it at once.
func (s *TableStore) Create(ctx context.Context) error {
	err := repeat(ctx, func() error {
		var exists bool
		const find = "SELECT pg_catalog.to_regclass($1::pg_catalog.text) IS NOT NULL"
		err := s.pool.QueryRow(ctx, find, s.table).Scan(&exists)
		if err != nil || exists {
			return err
		}
		_, err = s.pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+s.table+` (
  resource    pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY CHECK (
    pg_catalog.octet_length(resource) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(resource) OPERATOR(pg_catalog.<=) 512),
  token       pg_catalog.int8        NOT NULL CHECK (token OPERATOR(pg_catalog.>) 0),
  advanced_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
) WITH (fillfactor = 50)`)
		return err
	}, "23505", "42P07", "42710") // somebody else has just made it
	return failure.At(ctx, err, "fencedhttp: create table %s", s.table)
}

// repeat calls f again while it fails with one of these SQLSTATEs, which say that the server has undone it.
func repeat(ctx context.Context, f func() error, states ...string) error {
	for attempt := 1; ; attempt++ {
		err := f()
		again := slices.Contains(states, protocol.State(err))
		if !again || attempt == attempts || ctx.Err() != nil {
			return err
		}
	}
}
