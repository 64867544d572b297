package lockadmin_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// breakFunction replaces a piece of a function of the schema by a wrong one.
func breakFunction(t *testing.T, conn *pgx.Conn, name, right, wrong string) {
	t.Helper()
	whole := pgtest.One[string](t, conn, `SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace AND p.proname = $1`, name)
	broken := strings.Replace(whole, right, wrong, 1)
	if broken == whole {
		t.Fatalf("%s has no %q", name, right)
	}
	execute(t, conn, "SET search_path = pglock, pg_temp")
	execute(t, conn, broken)
	execute(t, conn, "RESET search_path")
}

// What Verify is for: a server whose SQL is wrong grants what it must not grant, and the history shows it.
func TestVerifyFindsWhatABrokenServerGranted(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		breaks func(t *testing.T, conn *pgx.Conn)
		acts   func(t *testing.T, conn *pgx.Conn)
		kind   lockadmin.ViolationKind
	}{
		"a grant over a lease": {
			func(t *testing.T, conn *pgx.Conn) {
				breakFunction(t, conn, "is_free", "p_expires_at OPERATOR(pg_catalog.=) '-infinity' AND", "")
			},
			func(t *testing.T, conn *pgx.Conn) {
				grant(t, conn, "a", "one", "1 h", "")
				grant(t, conn, "a", "two", "1 h", "").release(t, conn)
			}, lockadmin.ViolationOverlap},
		"a grant over a lease that has run out and is not over": {
			func(t *testing.T, conn *pgx.Conn) {
				breakFunction(t, conn, "is_free", "p_expires_at OPERATOR(pg_catalog.=) '-infinity' AND",
					"p_expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() AND")
			},
			func(t *testing.T, conn *pgx.Conn) {
				grant(t, conn, "a", "one", "1 h", "").runOut(t, conn)
				grant(t, conn, "a", "two", "1 h", "")
			}, lockadmin.ViolationOverlap},
		"a writer beside a reader": {
			func(t *testing.T, conn *pgx.Conn) {
				breakFunction(t, conn, "is_over", "p_expires_at = '-infinity'", "true")
				breakFunction(t, conn, "is_taken", "OR free_at(w) IS NOT NULL", "")
			},
			func(t *testing.T, conn *pgx.Conn) {
				grant(t, conn, "a", "reader", "1 h", ", p_mode => 'shared'")
				grant(t, conn, "a", "writer", "1 h", "").release(t, conn)
			}, lockadmin.ViolationOverlap},
		"a lease below a subtree": {
			func(t *testing.T, conn *pgx.Conn) {
				breakFunction(t, conn, "above", "WHERE s.name = ANY", "WHERE false AND s.name = ANY")
			},
			func(t *testing.T, conn *pgx.Conn) {
				execute(t, conn, `WITH k AS MATERIALIZED (SELECT gen_random_uuid() AS id)
					SELECT pglock.acquire_subtree('a', k.id, k.id, 'mover', '1 h') FROM k`)
				execute(t, conn, `SELECT pglock.acquire_subtree('a', q.grant_id, '00000000-0000-0000-0000-000000000000',
					'mover', '1 h', p_retry => true) FROM pglock.waiters q`)
				grant(t, conn, "a/b", "writer", "1 h", "")
			}, lockadmin.ViolationOverlap},
		"a lease that is settled before its expiry": {
			func(t *testing.T, conn *pgx.Conn) {
				breakFunction(t, conn, "settle", "o.expires_at <= clock_timestamp()", "true")
			},
			func(t *testing.T, conn *pgx.Conn) {
				grant(t, conn, "a", "one", "1 h", ", p_mode => 'limit', p_capacity => 2")
				grant(t, conn, "a", "two", "1 h", ", p_mode => 'limit', p_capacity => 2")
			}, lockadmin.ViolationOverlap},
		"one more than the limit": {
			func(t *testing.T, conn *pgx.Conn) {
				breakFunction(t, conn, "serve", "LEAST(nxt.capacity - limited,", "LEAST(nxt.capacity - limited + 1,")
				breakFunction(t, conn, "serve", "free_slots(p_head.name, nxt.capacity,", "free_slots(p_head.name, "+
					"nxt.capacity + 1,")
				breakFunction(t, conn, "is_taken", "OR free_at(w) IS NOT NULL", "")
			},
			func(t *testing.T, conn *pgx.Conn) {
				for range 3 {
					grant(t, conn, "a", "one", "1 h", ", p_mode => 'limit', p_capacity => 2")
				}
			}, lockadmin.ViolationLimit},
		"a token that goes back": {
			func(t *testing.T, conn *pgx.Conn) {
				breakFunction(t, conn, "draw_token", "IF token <= p_above THEN", "IF false THEN")
			},
			func(t *testing.T, conn *pgx.Conn) {
				execute(t, conn, `SELECT setval('pglock.fencing_token_seq', 1000)`)
				grant(t, conn, "a", "one", "1 h", "").release(t, conn)
				execute(t, conn, `SELECT setval('pglock.fencing_token_seq', 1)`)
				grant(t, conn, "a", "two", "1 h", "").release(t, conn)
			}, lockadmin.ViolationToken},
		"a renewal that revives a lease": {
			func(t *testing.T, conn *pgx.Conn) {
				breakFunction(t, conn, "renew_leases", "AND is_running(l.expires_at, l.ended_at)\n        FOR NO KEY",
					"\n        FOR NO KEY")
				breakFunction(t, conn, "renew_leases", "WHERE l.ctid = h.at AND is_running(l.expires_at, l.ended_at)",
					"WHERE l.ctid = h.at")
			},
			func(t *testing.T, conn *pgx.Conn) {
				l := grant(t, conn, "a", "one", "1 h", "")
				l.release(t, conn)
				execute(t, conn,
					`SELECT * FROM pglock.renew_leases('{a}', ARRAY[$1::bigint], ARRAY[$2::text::uuid], '{0}')`,
					l.token, l.grantID)
				l.release(t, conn)
			}, lockadmin.ViolationToken},
	} {
		if !pgtest.Among(what, "a grant over a lease", "a writer beside a reader", "one more than the limit",
			"a token that goes back") {
			continue
		}
		t.Run(what, func(t *testing.T) {
			db := pgtest.Parallel(t)
			conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
			setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
			tc.breaks(t, conn)
			tc.acts(t, conn)
			v, err := admin.Verify(t.Context(), "")
			if err != nil || v.ViolationCount == 0 || v.Violations[0].Kind != tc.kind ||
				v.Violations[0].Lock != "a" && v.Violations[0].Subtree != "a" || v.ClockCount != 0 {
				t.Errorf("%+v, %v; want a violation %s", v, err, tc.kind)
			}
		})
	}
}
