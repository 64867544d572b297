// Package report is the work of all programs here: it must be done by one process at a time.
package report

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is a pool, a connection or a transaction.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Schema is the table of the reports.
const Schema = "CREATE TABLE reports (name text PRIMARY KEY, pages int NOT NULL)"

// Write adds a page to the nightly report. It reads the number of pages, works for 5 ms, and writes the number. Two
// that do it at the same time lose a page.
func Write(ctx context.Context, db DB) error {
	var pages int
	const read = "SELECT pages FROM reports, pg_sleep(0.005) WHERE name = 'nightly'"
	if err := db.QueryRow(ctx, read).Scan(&pages); err != nil {
		return err
	}
	_, err := db.Exec(ctx, "UPDATE reports SET pages = $1 WHERE name = 'nightly'", pages+1)
	return err
}
