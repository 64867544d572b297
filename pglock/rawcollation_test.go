package pglock_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A text with a collation of its own needs COLLATE "C": the functions compare it with names in that collation.
func TestATextWithACollationOfItsOwnNeedsCollateC(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	execute(t, conn, `CREATE TABLE jobs (name text COLLATE "POSIX")`)
	execute(t, conn, `INSERT INTO jobs VALUES ('nightly')`)
	execute(t, conn, `SELECT pglock.acquire_lease('another', gen_random_uuid(), `+someID+`, 'h', '1 h')`)
	const id, of = someID, ` FROM jobs j, (SELECT max(o.token) AS token FROM pglock.locks o) l`
	for _, call := range []struct{ before, after, answer string }{
		{`SELECT (pglock.acquire_lease(`, `, ` + id + `, ` + id + `, 'h', '1 h')).granted FROM jobs j`, "true"},
		{`SELECT (pglock.renew_leases(ARRAY[`, `], ARRAY[l.token], ARRAY[` + id + `], '{0}')).outcome` + of, "renewed"},
		{`SELECT (pglock.fence(`, `, l.token, ` + id + `)).remaining_us > 0` + of, "true"},
		{`SELECT (pglock.release_lease(`, `, l.token, ` + id + `)).released` + of, "true"},
	} {
		sql := `SELECT v::text FROM (` + call.before + `j.name` + call.after + `) a (v)`
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); sqlState(err) != "42P22" {
			t.Errorf("%s: %v, want 42P22", sql, err)
		}
		sql = `SELECT v::text FROM (` + call.before + `j.name COLLATE "C"` + call.after + `) a (v)`
		if answer := answerOf(t, conn, sql); answer != call.answer {
			t.Errorf("%s: %s, want %s", sql, answer, call.answer)
		}
	}
}
