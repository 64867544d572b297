//go:build unix

package cluster

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

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
