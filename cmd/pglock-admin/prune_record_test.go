package main

import (
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// foundByHint runs the query of a hint, which must find somebody, and tells in which mode that one has the table.
func foundByHint(t *testing.T, db *pgtest.DB, text string) (mode string) {
	t.Helper()
	_, query, found := strings.Cut(text, "\n  SELECT a.pid")
	if !found {
		t.Fatalf("no query in %q", text)
	}
	return pgtest.One[string](t, db.Conn(t), "SELECT mode FROM (SELECT a.pid"+query+") q")
}

func TestWhoeverKeepsTheRecordOfTheInstallationIsFound(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, `INSERT INTO pglock.events (kind, lock_name, token) VALUES ('takeover', 'a', 1)`)
	operator := must.Get(db.Conn(t).Begin(t.Context()))(t)
	must.Get(operator.Exec(t.Context(), `SELECT pglock.advance_epoch('test', 'alice')`))(t)
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
