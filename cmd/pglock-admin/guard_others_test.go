package main

import (
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// VACUUM and CREATE INDEX CONCURRENTLY of one partition are in the way, too.
func TestGuardNamesWhoeverUsesAPartition(t *testing.T) {
	db := pgtest.Parallel(t)
	partitioned(t, db)
	conn := db.Conn(t)
	user := must.Get(conn.Begin(t.Context()))(t)
	must.Get(user.Exec(t.Context(), "LOCK TABLE accounts_2 IN SHARE UPDATE EXCLUSIVE MODE"))(t)
	for limits, tc := range map[string]struct {
		code       int
		says, more string
	}{
		"--lock-timeout 50ms": {cli.ExitFailure, "table accounts was in use for longer than 50ms",
			"a longer --lock-timeout"},
		// which is over before that of the lock, because the command needs time before
		"--timeout 4s --lock-timeout 3999ms": {cli.ExitUnreachable, "no answer within 4s (--timeout)",
			"a longer --timeout"},
	} {
		args := append([]string{"guard", "add", "accounts"}, strings.Fields(limits)...)
		a := in(t, db.URL(), args...).want(t, tc.code, tc.says+"; nothing was changed", tc.more)
		found := pgtest.One[uint32](t, db.Conn(t), "SELECT pid FROM ("+queryOf(t, a.stderr)+") q")
		if found != conn.PgConn().PID() {
			t.Errorf("the query of the advice finds %d, want %d", found, conn.PgConn().PID())
		}
	}
	must.Do(t, user.Rollback(t.Context()))
	in(t, db.URL(), "guard", "add", "accounts").want(t, cli.ExitOK)
}

// guard list of this schema has nothing of it.
func TestGuardOfAnotherSchemaIsNotLookedForInThisOne(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db, "CREATE TABLE jobs (id int)")
	in(t, db.URL(), "guard", "add", "jobs").want(t, cli.ExitOK)
	in(t, db.URL(), "migrate", "up", "--schema", "other").want(t, cli.ExitOK)
	a := in(t, db.URL(), "guard", "add", "jobs", "--schema", "other").want(t, cli.ExitUsage, "already exists",
		"another schema of pglock guards the table", `-c '\d jobs'`)
	if strings.Contains(a.stderr, "guard list") {
		t.Errorf("%s", a.stderr)
	}
}
