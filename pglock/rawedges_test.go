package pglock_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// answerOf is what a call of one column answers; a NULL is "".
func answerOf(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var answer *string
	if err := conn.QueryRow(t.Context(), sql, pgx.QueryExecModeSimpleProtocol).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if answer == nil {
		return ""
	}
	return *answer
}

// A day is 23 hours long where summer time begins in it, and no lease may be shorter than its TTL says.
func TestI15_ATTLHasNoDays(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	for _, name := range []string{"free", "held"} {
		execute(t, conn, "SELECT pglock.acquire_lease('"+name+"', "+someID+", "+someID+", 'h', '1 min')")
	}
	execute(t, conn, "SELECT pglock.release_lease('free', 1, "+someID+")")
	for _, name := range []string{"free", "new", "held"} {
		for _, ttl := range []string{"1 day", "1 day -23:00", "-1 day 25 hours", "1 mon -719 hours",
			"12 mons -8639 hours", "1200 mon -35999 days", "-12 mon 361 days"} {
			for what, call := range map[string]string{
				"a TTL":                   "'h', $2::text::interval",
				"a session's TTL":         "'h', '1 s', p_session_ttl => $2::text::interval",
				"a waiting session's TTL": "'h', '1 s', p_session_ttl => $2::text::interval, p_wait => true",
			} {
				_, err := conn.Exec(t.Context(), "SELECT pglock.acquire_lease($1, gen_random_uuid(), "+
					"gen_random_uuid(), "+call+")", name, ttl)
				if sqlState(err) != invalid {
					t.Errorf("lock %s with %s of %s: %v", name, what, ttl, err)
				}
			}
		}
	}
	if granted := answerOf(t, conn, "SELECT granted::text FROM pglock.acquire_lease('free', gen_random_uuid(), "+
		"gen_random_uuid(), 'h', '24:00:00')"); granted != "true" {
		t.Errorf("24 hours: granted %s", granted)
	}
}

func TestI11_AModeIsComparedByteByByte(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	execute(t, conn, "CREATE TEMP TABLE mine ()")
	_, err := conn.Exec(t.Context(), "CREATE COLLATION pg_temp.anycase (provider = icu, locale = 'und-u-ks-level2', "+
		"deterministic = false)")
	if sqlState(err) == "0A000" {
		t.Skip("the server was built without ICU, and has no collation that takes different texts for equal")
	}
	if err == nil {
		_, err = conn.Exec(t.Context(),
			`SELECT pglock.acquire_lease('a', gen_random_uuid(), gen_random_uuid(), 'h', '1 h',
			p_mode => 'EXCLUSIVE' COLLATE pg_temp.anycase)`)
	}
	if sqlState(err) != invalid {
		t.Errorf("%v, want %s", err, invalid)
	}
	if rows := answerOf(t, conn, "SELECT count(*)::text FROM pglock.locks"); rows != "0" {
		t.Errorf("%s locks were written", rows)
	}
}

// A limit may change when the last lease with the old one has run out, as after a crash of its holder.
func TestALimitThatHasRunOutIsInNobodysWay(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	acquire := func(capacity string) string {
		return answerOf(t, conn, "SELECT granted::text FROM pglock.acquire_lease('x', gen_random_uuid(), "+
			"gen_random_uuid(), 'h', '1 h', p_mode => 'limit', p_capacity => "+capacity+")")
	}
	if granted := acquire("2"); granted != "true" {
		t.Fatal(granted)
	}
	execute(t, conn, "UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE slot = 1")
	if granted := acquire("3"); granted != "true" {
		t.Errorf("granted %s", granted)
	}
}

func TestALeaseInAnotherSlotIsUnknown(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	execute(t, conn, "SELECT pglock.acquire_lease('x', "+someID+", "+someID+", 'h', '1 h')")
	const wrong = "('{x}', '{1}', ARRAY[" + someID + "], '{1}')"
	if reason := answerOf(t, conn, "SELECT reason FROM pglock.check_leases"+wrong); reason != "unknown" {
		t.Errorf("check: %q", reason)
	}
	if outcome := answerOf(t, conn, "SELECT outcome FROM pglock.renew_leases"+wrong); outcome != "unknown" {
		t.Errorf("renew: %q", outcome)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pglock.fence('x', 1, "+someID+
		", p_slot => 1)"); sqlState(err) != "LK003" {
		t.Errorf("fence: %v", err)
	}
	if reason := answerOf(t, conn, "SELECT reason FROM pglock.check_leases('{x}', '{1}', ARRAY["+someID+
		"], '{0}')"); reason != "" {
		t.Errorf("check of the lease's own slot: %q", reason)
	}
}
