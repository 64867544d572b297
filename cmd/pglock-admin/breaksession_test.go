package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A break of more than a thousand locks that ends after the first ones tells apart why it has ended.
func TestABreakOfASessionThatEndsInTheMiddleSaysWhyAndWhatWasBroken(t *testing.T) {
	t.Parallel()
	const session = "11111111-1111-4111-8111-111111111111"
	for name, tc := range map[string]struct {
		end   func(db *pgtest.DB, interrupt func())
		code  int
		texts []string
	}{
		"interrupted": {
			func(_ *pgtest.DB, interrupt func()) { interrupt() }, cli.ExitInterrupted,
			[]string{"interrupted; at least 1000 leases", "try: the same command again, which goes on from there"},
		},
		"the connection is lost": {
			func(db *pgtest.DB, _ func()) {
				execute(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "+
					"current_database() AND application_name LIKE 'pglock %/pglock-admin%'")
			}, cli.ExitUnreachable, []string{"at least 1000 leases", "once the server is back"},
		},
		"the right is taken away": {
			func(db *pgtest.DB, _ func()) { execute(t, db, `REVOKE pglock_admin FROM "`+db.Name()+`_user"`) },
			cli.ExitPermission, []string{"at least 2000 leases", "GRANT pglock_admin TO "},
		},
		"somebody keeps a lock": {
			func(db *pgtest.DB, _ func()) { blocked(t, db) }, cli.ExitFailure,
			[]string{"at least 1000 leases", "SQLSTATE 55P03", "which goes on from there"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := pgtest.Parallel(t)
			user, busy := asUser(t, db, "pglock_admin"), db.Conn(t)
			execute(t, db, `INSERT INTO pglock.locks (name, holder, session_id, grant_id, token, ttl, acquired_at,
					renewed_at, expires_at)
				SELECT 'l' || to_char(i, 'FM0000'), 'worker', $1, gen_random_uuid(), nextval('pglock.fencing_token_seq'),
					'1 h', clock_timestamp(), clock_timestamp(), clock_timestamp() + interval '1 h'
				FROM generate_series(1, 2001) i`, session)
			if tc.code != cli.ExitFailure { // a busy machine needs longer
				execute(t, db, "ALTER FUNCTION pglock.break_session SET lock_timeout = '1min'")
			}
			must.Get(busy.Exec(t.Context(), "BEGIN; SELECT FROM pglock.locks WHERE name = 'l1001' FOR UPDATE"))(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			done := must.Go(func() answer {
				var stdout, stderr bytes.Buffer
				code := obey(ctx, []string{"break", "--session", session, "--reason", "r", "--timeout", "2m"},
					environment(user), &stdout, &stderr)
				return answer{code, stdout.String(), stderr.String()}
			})
			blocked(t, db)
			tc.end(db, interrupt)
			if tc.code == cli.ExitPermission { // only the next thousand asks for it
				must.Get(busy.Exec(t.Context(), "ROLLBACK"))(t)
			}
			(<-done).want(t, tc.code, tc.texts...)
		})
	}
}
