package lockadmin_test

import (
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// A look reads a thousand tickets of a queue at once. All of these may be dead.
func TestAQueueWhoseFirstThousandAreDeadIsExplained(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	explained := func(want lockadmin.LockState) {
		t.Helper()
		if e, err := admin.Explain(t.Context(), "report"); err != nil || e.State != want {
			t.Errorf("%+v, %v", e, err)
		}
		if _, err := admin.Overview(t.Context(), 20); err != nil {
			t.Error(err)
		}
	}
	execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'holder', '1 h')`)
	execute(t, conn, `INSERT INTO pglock.waiters
			(name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
		SELECT 'report', nextval('pglock.ticket_seq'), 'exclusive', gen_random_uuid(), gen_random_uuid(), false, 'dead',
			'30 s', now()
		FROM generate_series(1, 1001)`) // no row in sessions: dead
	explained(lockadmin.LockHeld)
	execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '10 s'`)
	explained(lockadmin.LockFree)

	// a live waiter behind them is seen, too
	execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '1 h'`)
	execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'alive', '30 s',
		p_wait => true)`)
	e, err := admin.Explain(t.Context(), "report")
	if q := e.Queue; err != nil || q.Alive == nil || q.Alive.Holder != "alive" || q.Alive.Place != 1002 ||
		q.Dead != 1001 || q.Read != 1002 || q.Waiting != 1002 {
		t.Errorf("%+v, %v", q, err)
	}
}
