package integration

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Nobody looks for whom a dead waiter waits, through all that are dead before it.
func TestADeadQueueIsListedInTheTimeOfItsLength(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	const dead = 10_000
	look.mustAcquire(t, "report", time.Hour)
	look.exec(t, `INSERT INTO pglock.waiters
			(name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
		SELECT 'report', nextval('pglock.ticket_seq'), 'exclusive', gen_random_uuid(), gen_random_uuid(), false, 'dead',
			'30 s', now()
		FROM generate_series(1, $1::int)`, dead) // no row in sessions: dead
	p.mustEnqueue(t, "report", "exclusive", nil)
	p.exec(t, `SET statement_timeout = '20s'`)
	for _, order := range []string{"name", "age"} {
		sql := `SELECT FROM pglock.list_waiters('report', p_limit => 10000, p_order => '` + order + `')`
		if rows, _ := p.rowsRead(t, sql); rows > 4*dead {
			t.Errorf("by %s: %d rows were read for %d waiters", order, rows, dead+1)
		}
	}
	// the live one waits for the holder, however many dead ones are before it
	wantCount(t, p, 1, "%d live waiters are behind the holder, want 1",
		`SELECT count(*) FROM pglock.list_waiters('report', p_limit => 20000)
		WHERE alive AND place = $1 AND behind_holder = (SELECT holder FROM pglock.locks WHERE name = 'report')
			AND behind_ticket IS NULL`, dead+1)
}
