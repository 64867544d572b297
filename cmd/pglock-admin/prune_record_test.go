package main

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// foundByHint runs the query of a hint, which must find somebody, and tells in which mode that one has the table.
func foundByHint(t *testing.T, db *pgtest.DB, text string) (mode string) {
	t.Helper()
	return pgtest.One[string](t, db.Conn(t), "SELECT mode FROM ("+queryOf(t, text)+") q WHERE pid IS NOT NULL")
}

// queryOf finds the query of a hint, at its end.
func queryOf(t *testing.T, text string) string {
	t.Helper()
	at := strings.LastIndex(text, "SELECT l.pid")
	if at < 0 {
		t.Fatalf("no query in %q", text)
	}
	return strings.TrimSuffix(strings.TrimSpace(text[at:]), `"`)
}

// A prepared transaction has no process. The queries of hints name it all the same, and nobody of another database.
func TestAPreparedTransactionInTheWayIsFound(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, map[string]string{"max_prepared_transactions": "5"})
	at := freshDatabase(t, server.URL(), "app")
	session := func(url string) (conn *pgx.Conn, run func(...string)) {
		conn = must.Get(pgx.Connect(t.Context(), url))(t)
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn, func(statements ...string) {
			t.Helper()
			for _, sql := range statements {
				must.Get(conn.Exec(t.Context(), sql))(t)
			}
		}
	}
	_, elsewhere := session(server.URL())
	elsewhere("BEGIN", "CREATE TABLE jobs (id int)") // it has locked that whole table
	conn, run := session(at)
	run("CREATE TABLE jobs (id int)", "SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'worker', "+
		"'1 h') FROM unnest('{idle,held}'::text[]) n", "UPDATE pglock.locks SET expires_at = '-infinity', "+
		"ended_at = clock_timestamp() - interval '25 h' WHERE name = 'idle'")
	for command, does := range map[string]string{
		"prune --timeout 7s":               "UPDATE pglock.locks SET ttl = ttl WHERE name = 'held'",
		"guard add jobs --lock-timeout 1s": "INSERT INTO jobs VALUES (1)",
		"break held --reason r":            "LOCK TABLE pglock.locks",
	} {
		run("BEGIN", does, "PREPARE TRANSACTION 'half of ''it'' all'")
		a := in(t, at, strings.Fields(command)...).want(t, cli.ExitFailure)
		if found := pgtest.One[string](t, conn, "SELECT string_agg(coalesce(prepared, 'nobody'), ', ') FROM ("+
			queryOf(t, a.stderr)+") q"); found != "half of 'it' all" {
			t.Errorf("after %s the query of the hint finds %q", command, found)
		}
		run("ROLLBACK PREPARED 'half of ''it'' all'")
	}
}

func TestWhoeverKeepsTheRecordOfTheInstallationIsFound(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, `INSERT INTO pglock.events (kind, lock_name, token) VALUES ('takeover', 'a', 1)`)
	operator := must.Get(db.Conn(t).Begin(t.Context()))(t)
	must.Get(operator.Exec(t.Context(), `UPDATE pglock.installation SET epoch = epoch`))(t)
	for command, text := range map[string]string{
		"prune --events 0s": "the record of the installation; removed 0 locks, 0 leftovers and 0 events, after ",
		"record --keep 30d": "nothing was changed within 7s (--timeout)",
	} {
		a := in(t, db.URL(), append(strings.Fields(command), "--timeout", "7s")...).want(t, cli.ExitFailure, text)
		if mode := foundByHint(t, db, a.stderr); mode != "RowExclusiveLock" {
			t.Errorf("after %s the query of the hint finds %q", command, mode)
		}
	}
	must.Do(t, operator.Rollback(t.Context()))
	in(t, db.URL(), "prune", "--events", "0s").want(t, cli.ExitOK, "events     1,")
}
