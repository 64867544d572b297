//go:build unix

package cluster

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// Only this file knows the library's own tables. The rest of the laboratory uses what is documented.

// Logical decoding follows locksTable, to learn the order of grants, renewals and ends of leases.
const (
	locksSchema = "pglock"
	locksTable  = "locks"
)

const locksSnapshot = `SELECT name, slot::text, token::text, holder, grant_id::text, mode, capacity::text,
		subtree::text, owner_id::text, acquired_at::text, expires_at::text, ended_at::text
	FROM pglock.locks`

// versionOf reads a version of a row from its columns as text; a column that is NULL is not there.
func versionOf(column map[string]string) (v history.Version, err error) {
	number := func(name string) int64 {
		if err != nil || column[name] == "" {
			return 0
		}
		var n int64
		n, err = strconv.ParseInt(column[name], 10, 64)
		return n
	}
	moment := func(name string) (t time.Time) {
		text := column[name]
		if err != nil || text == "" || text == "-infinity" {
			return t
		}
		t, err = time.Parse("2006-01-02 15:04:05.999999-07", text)
		return t
	}
	v = history.Version{
		Name: column["name"], Slot: int(number("slot")), Token: number("token"), Holder: column["holder"],
		Mode:     column["mode"],
		Capacity: int(number("capacity")), AcquiredAt: moment("acquired_at"), ExpiresAt: moment("expires_at"),
		EndedAt: moment("ended_at"), Owner: column["owner_id"],
		Subtree: column["subtree"] == "t" || column["subtree"] == "true",
	}
	// The same grant ID may be granted twice, when its request was queued anew.
	v.Grant = column["grant_id"] + " " + column["acquired_at"]
	if err != nil {
		err = fmt.Errorf("cluster: a row of %s: %w", locksTable, err)
	}
	return v, err
}

func snapshotVersions(ctx context.Context, conn *pgx.Conn) ([]history.Version, error) {
	rows, err := conn.Query(ctx, locksSnapshot, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (history.Version, error) {
		texts := make([]*string, len(row.FieldDescriptions()))
		targets := make([]any, len(texts))
		for i := range texts {
			targets[i] = &texts[i]
		}
		if err := row.Scan(targets...); err != nil {
			return history.Version{}, err
		}
		column := make(map[string]string, len(texts))
		for i, f := range row.FieldDescriptions() {
			if texts[i] != nil {
				column[f.Name] = *texts[i]
			}
		}
		return versionOf(column)
	})
}

// Leftovers counts what is left of clients in the tables.
type Leftovers struct {
	Tickets  int      // of anybody, alive or dead
	Sessions int      // that are there, alive or dead
	Alive    []string // labels of sessions that count as alive
}

// Leftovers reads what is left.
func (c *Cluster) Leftovers(ctx context.Context) (l Leftovers, err error) {
	err = c.ask(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM pglock.waiters), (SELECT count(*) FROM pglock.sessions),
			(SELECT coalesce(array_agg(holder ORDER BY holder), '{}') FROM pglock.sessions WHERE alive_until > clock_timestamp())`).
			Scan(&l.Tickets, &l.Sessions, &l.Alive)
	})
	return l, err
}

// Sizes are how much there is of the library's tables, and of the application's connections.
type Sizes struct {
	Connections int
	Tables      []TableSize
	Left        int // locks that nothing keeps from being pruned, and that have been free for leftFor
}

// leftFor is longer than it takes until somebody prunes.
const leftFor = 2 * time.Minute

// TableSize is one table.
type TableSize struct {
	Name          string
	Size, Indexes int64 // bytes
	Dead          int64 // tuples, as the statistics count them, which a crash resets
	Rows          int64
	Counted       bool // so that Rows says how many it has
	Passing       bool // its rows are names that the load uses once; other tables keep what is Counted for long
}

// ReadSizes reads them over the laboratory's own connections.
func ReadSizes(ctx context.Context, q *pgxpool.Pool) (s Sizes, err error) {
	rows, err := q.Query(ctx, `SELECT c.relname::text, pg_table_size(c.oid), pg_indexes_size(c.oid),
			coalesce(pg_stat_get_dead_tuples(c.oid), 0), coalesce(k.rows, 0), k.rows IS NOT NULL,
			(SELECT count(*) FROM pg_stat_activity a WHERE a.usename = $1)
		FROM pg_class c LEFT JOIN (
			SELECT 'done_keys', count(*) FROM pglock.done_keys UNION ALL SELECT 'events', count(*) FROM pglock.events
			UNION ALL SELECT 'fences', count(*) FROM pglock.fences UNION ALL SELECT 'locks', count(*) FROM pglock.locks
			UNION ALL SELECT 'receipts', count(*) FROM pglock.receipts
			UNION ALL SELECT 'spent_grants', count(*) FROM pglock.spent_grants) k (name, rows) ON k.name = c.relname
		WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind = 'r' ORDER BY 1`, App)
	if err != nil {
		return s, err
	}
	s.Tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t TableSize, err error) {
		err = row.Scan(&t.Name, &t.Size, &t.Indexes, &t.Dead, &t.Rows, &t.Counted, &s.Connections)
		t.Passing = t.Name == locksTable
		return t, err
	})
	if err != nil {
		return s, err
	}
	return s, q.QueryRow(ctx, `SELECT count(*) FROM (
		SELECT FROM pglock.locks l GROUP BY l.name
		HAVING max(GREATEST(l.ended_at, l.expires_at)) < clock_timestamp() - $1 * interval '1 s'
			AND (max(GREATEST(l.spent_until, l.watched_until)) <= clock_timestamp()) IS NOT FALSE
			AND NOT EXISTS (SELECT FROM pglock.waiters w WHERE w.name = l.name)) f`, leftFor.Seconds()).Scan(&s.Left)
}

// Vacuum vacuums the library's tables.
func Vacuum(ctx context.Context, q *pgxpool.Pool) error {
	var vacuum string
	err := q.QueryRow(ctx, `SELECT 'VACUUM ' || string_agg(c.oid::regclass::text, ', ') FROM pg_class c
		WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind = 'r'`).Scan(&vacuum)
	if err == nil {
		_, err = q.Exec(ctx, vacuum)
	}
	return err
}
