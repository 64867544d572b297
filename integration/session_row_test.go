package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// queueing are the ways to queue for the lock x, by a grant ID and a session's key.
var queueing = []string{
	`SELECT FROM pglock.acquire_lease('x', $1, $2, 'peer', '30 s', p_wait => true)`,
	`SELECT FROM pglock.acquire_leases(ARRAY['x'], ARRAY[$1::uuid], $2, ARRAY[ARRAY['peer']], ARRAY[interval '30 s'],
		ARRAY[NULL::jsonb], ARRAY[false], ARRAY['exclusive'], ARRAY[NULL::int], ARRAY[true], '10 s',
		ARRAY[NULL::uuid], ARRAY[false])`,
}

// Whoever has locked the session's row may note less than a request needs: a mark of the connection is no sign of life
// for tickets.
func TestI9_ATicketCountsThoughItsSessionIsMarkedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"one": true, "new one": false} {
		for _, way := range queueing {
			db := pgtest.Database(t)
			holder, first, second := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
			marker := newPeer(t, db.URL())
			patientWaits(t, marker)
			held := holder.mustAcquire(t, "x", time.Minute)
			if known {
				marker.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until)
					VALUES ($1, 'h', now() - interval '1 s')`, first.session())
			}
			marker.exec(t, `BEGIN`)
			marker.exec(t, `SELECT pglock.mark_connection($1, 0, 'h', 'v1')`, first.key.String())
			id, queued := uuid.New(), make(chan error, 1)
			pgtest.Group(t).Go(func() {
				_, err := first.Exec(t.Context(), way, id.String(), first.key.String())
				queued <- err
			})
			pgtest.Eventually(t, "the request to wait for the mark", func() bool {
				return len(queued) > 0 || one[int](t, holder, `SELECT cardinality(pg_blocking_pids($1))`,
					first.PgConn().PID()) > 0
			})
			marker.exec(t, `COMMIT`)
			must.Do(t, <-queued)
			second.queue(t, "x", uuid.New())
			holder.mustEnd(t, held)
			got := one[string](t, holder, `SELECT grant_id::text FROM pglock.locks WHERE name = 'x'`)
			if got != id.String() {
				t.Errorf("%s: the first in the queue was passed over", name)
			}
		}
	}
}

// A lock whose row somebody keeps locked is in the way of those alone who want that lock: the requests for it keep
// their client's session from nobody while they wait.
func TestI9_AStuckLockLetsTheTicketsForOthersCount(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, client, hang := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	holder.exec(t, `ALTER FUNCTION pglock.acquire_otherwise SET lock_timeout = '10s'`) // a slow machine is no reason
	holder.mustAcquire(t, "x", time.Minute)
	hang.exec(t, `BEGIN`)
	hang.exec(t, `SELECT FROM pglock.locks WHERE name = 'x' FOR UPDATE`)
	hang.liftLimits(t)
	for _, known := range []bool{false, true} {
		holder.exec(t, `DELETE FROM pglock.sessions WHERE session_id = $1`, client.session())
		if known {
			holder.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until)
				VALUES ($1, 'h', now() - interval '1 s')`, client.session())
		}
		stuck, refused := newPeer(t, db.URL()), make(chan error, 1)
		pgtest.Group(t).Go(func() {
			_, err := stuck.Exec(t.Context(), queueing[0], uuid.NewString(), client.key.String())
			refused <- err
		})
		stuck.awaitBlocked(t, holder)
		client.exec(t, `SET lock_timeout = '100ms'`)
		if !one[bool](t, client, `SELECT pglock.keep_session($1, 'h', '10 s')`, client.key.String()) {
			t.Errorf("session known: %v: the request has locked it", known)
		}
		if err := <-refused; state(err) != "55P03" {
			t.Errorf("the request for the stuck lock: %v", err)
		}
	}
}

// A look does not leave a session to die because somebody has locked its row: what that one notes may be undone.
func TestI9_ALookWaitsForWhoeverHasLockedItsDyingSession(t *testing.T) {
	db := pgtest.Parallel(t)
	client, other, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	for left, waits := range map[string]bool{"6 s": false, "4 s": true} { // of 10 s
		other.exec(t, `DELETE FROM pglock.sessions`)
		other.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until)
			VALUES ($1, 'h', now() + $2::interval)`, client.session(), left)
		other.exec(t, `BEGIN`)
		other.exec(t, `SELECT FROM pglock.sessions FOR NO KEY UPDATE`)
		looked := make(chan error, 1)
		pgtest.Group(t).Go(func() {
			_, err := client.Exec(t.Context(), `SELECT FROM pglock.look($1, 'h', '10 s')`, client.key.String())
			looked <- err
		})
		pgtest.Eventually(t, "the look to end or to wait", func() bool {
			return len(looked) > 0 || one[int](t, look, `SELECT cardinality(pg_blocking_pids($1))`,
				client.PgConn().PID()) > 0
		})
		if waited := len(looked) == 0; waited != waits {
			t.Errorf("a session that lives for %s more: the look waits: %v", left, waited)
		}
		other.exec(t, `ROLLBACK`)
		must.Note(t, <-looked)
		if lives := one[bool](t, look, `SELECT alive_until > now() + interval '8 s' FROM pglock.sessions`); lives != waits {
			t.Errorf("a session that lived for %s more: noted: %v", left, lives)
		}
	}
}
