package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// Whoever has locked the history keeps a lock whose last lease ran out from the next in the queue, which is not to
// blame for that.
func TestWhyNamesWhoeverKeepsTheHistoryFromTheNextInTheQueue(t *testing.T) {
	db := pgtest.Parallel(t)
	user := asUser(t, db, "pglock_user")
	execute(t, db, "SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')")
	client := must.Get(pglock.New(t.Context(), db.Pool(t)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := must.Go(func() error { _, err := client.Acquire(ctx, "report", pglock.WithHolder("app-2")); return err })
	queued(t, db, "report", 1)
	tx := must.Get(db.Conn(t).Begin(t.Context()))(t)
	must.Get(tx.Exec(t.Context(), "LOCK TABLE pglock.events"))(t)
	execute(t, db, `UPDATE pglock.locks SET acquired_at = acquired_at - interval '2 h',
		renewed_at = renewed_at - interval '2 h', expires_at = clock_timestamp() - interval '5 s' WHERE name = 'report'`)
	pid := tx.Conn().PgConn().PID()
	pgtest.Eventually(t, "the transaction is older than a moment", func() bool {
		return ask[bool](t, db, "SELECT clock_timestamp() - xact_start > '2 s' FROM pg_stat_activity WHERE pid = $1",
			pid)
	})
	for _, url := range []string{db.URL(), user} {
		for range 3 { // an attempt of the waiter may be under way, or not
			text := strings.Join(strings.Fields(in(t, url, "why", "report").want(t, cli.ExitOK, "STUCK").stdout), " ")
			if end := fmt.Sprintf("pg_terminate_backend(%d)", pid); !strings.Contains(text, end) ||
				strings.Count(text, "pg_terminate_backend(") != 1 || strings.Contains(text, "does not take it") ||
				strings.Contains(text, "Ending it") {
				t.Errorf("want no end but %s:\n%s", end, text)
			}
		}
		in(t, url, "why").want(t, cli.ExitOK, "report")
	}
	must.Do(t, tx.Rollback(t.Context()))
	must.Note(t, <-got)
	cancel()
	must.Note(t, client.Close(t.Context()))
}

// Whoever has locked a table that all need is named also while they wait for the history.
func TestWhyNamesWhoHasLockedATableAndWaitsForTheHistory(t *testing.T) {
	db := pgtest.Parallel(t)
	reader, locker := db.Conn(t), db.Conn(t)
	for _, sql := range []string{"BEGIN", "LOCK TABLE pglock.events IN ACCESS SHARE MODE"} {
		must.Get(reader.Exec(t.Context(), sql))(t)
	}
	for _, sql := range []string{"BEGIN", "LOCK TABLE pglock.locks"} {
		must.Get(locker.Exec(t.Context(), sql))(t)
	}
	ended := must.Go(func() error {
		_, err := locker.Exec(t.Context(), "LOCK TABLE pglock.events; ROLLBACK")
		return err
	})
	pgtest.Eventually(t, "it waits for the reader", func() bool {
		return ask[bool](t, db, "SELECT cardinality(pg_blocking_pids($1)) > 0", locker.PgConn().PID())
	})
	in(t, db.URL(), "why", "report", "--timeout", "4s").want(t, cli.ExitOK, "has locked the whole",
		fmt.Sprintf("pg_terminate_backend(%d)", locker.PgConn().PID()))
	must.Get(reader.Exec(t.Context(), "ROLLBACK"))(t)
	must.Note(t, <-ended)
}
