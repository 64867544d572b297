package pglock_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A failover, or a restore, undoes a grant that its holder has the answer of.
func TestGrantThatAFailoverHasLostIsUnknownAlsoWhenOthersWereGrantedTheLock(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ between, want string }{
		"another timeline": {
			"UPDATE pglock.installation SET timeline = timeline - 1, started = NULL", "unknown"},
		"an epoch advanced by hand": {"SELECT pglock.advance_epoch('restored', 'me')", "unknown"},
		"the same epoch":            {"SELECT", "released"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := pgtest.Database(t).Conn(t)
			lost, next := uuid.New(), uuid.New()
			acquire := func(id uuid.UUID) (token int64) {
				t.Helper()
				if err := conn.QueryRow(t.Context(), `SELECT token FROM pglock.acquire_lease('report', $1,
					gen_random_uuid(), 'h', '1 h')`, id).Scan(&token); err != nil {
					t.Fatal(err)
				}
				return token
			}
			release := `SELECT pglock.release_lease('report', $2, $1)`
			before := uuid.New()
			execute(t, conn, release, before, acquire(before))
			execute(t, conn, "BEGIN")
			token := acquire(lost)
			if tc.want == "released" {
				execute(t, conn, "COMMIT")
				execute(t, conn, release, lost, token)
			} else {
				execute(t, conn, "ROLLBACK")
			}
			execute(t, conn, tc.between)
			acquire(next)
			var outcome, reason string
			if err := conn.QueryRow(t.Context(), `SELECT r.outcome, c.reason
				FROM pglock.renew_leases('{report}', ARRAY[$2::bigint], ARRAY[$1::uuid], '{0}') r,
					pglock.check_leases('{report}', ARRAY[$2::bigint], ARRAY[$1::uuid], '{0}') c`, lost, token).Scan(
				&outcome, &reason); err != nil || outcome != tc.want || reason != tc.want {
				t.Errorf("renewal: %q, check: %q, %v; want %q", outcome, reason, err, tc.want)
			}
		})
	}
}
