package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// lockHistory keeps the history from all others, as VACUUM FULL does, until the test ends.
func lockHistory(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	execute(t, conn, "BEGIN; LOCK TABLE pglock.events IN ACCESS EXCLUSIVE MODE")
}

func TestLostLeaseWhoseEndCannotBeReadCostsNoOther(t *testing.T) {
	db := pgtest.Parallel(t)
	c, conn := startClient(t, db.Pool(t), pglock.WithDefaultTTL(6*time.Second)), db.Conn(t)
	broken, kept := mustAcquire(t, c, "broken"), mustAcquire(t, c, "kept")
	execute(t, conn, "SELECT pglock.break_lock('broken', 'test', 'me')")
	lockHistory(t, conn)
	<-broken.Context().Done()
	if lost := new(pglock.LostError); !errors.As(context.Cause(broken.Context()), &lost) ||
		lost.Reason != pglock.ReasonUnknown {
		t.Errorf("the broken one: %v, want ReasonUnknown", context.Cause(broken.Context()))
	}
	deadline := kept.Deadline().Add(6 * time.Second)
	pgtest.Eventually(t, "renewals of the other", func() bool {
		return kept.Deadline().After(deadline) || kept.Err() != nil
	})
	must.Note(t, kept.Err())
}

func TestStatementWaitsOnceForALockedHistory(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, other := db.Conn(t), db.Conn(t)
	const leases = 50 // each with a wait of a tenth of a second would last longer than the limit
	execute(t, conn, "SET statement_timeout = '4s'")
	id := uuid.New()
	execute(t, conn, `CREATE TEMPORARY TABLE lease AS SELECT 'l' || i AS name, a.token FROM generate_series(1, $1::int) i,
		pglock.acquire_lease('l' || i, $2, gen_random_uuid(), 'h', '1 h') a`, leases, id)
	execute(t, conn, "SELECT pglock.break_lock(name, 'test', 'me') FROM lease WHERE name <> 'l1'")
	ask := func(function, column string) map[string]int {
		t.Helper()
		rows := must.Get(conn.Query(t.Context(), fmt.Sprintf(`SELECT coalesce(%[2]s, 'held') FROM (
			SELECT array_agg(name) n, array_agg(token) t, array_agg($1::uuid) g, array_agg(0) s FROM lease) l,
			pglock.%[1]s(n, t, g, s)`, function, column), id))(t)
		said, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", function, err)
		}
		count := make(map[string]int)
		for _, s := range said {
			count[s]++
		}
		return count
	}
	for _, want := range []string{"broken", "unknown"} {
		if want == "unknown" {
			lockHistory(t, other)
		}
		if got := ask("renew_leases", "outcome"); got["renewed"] != 1 || got[want] != leases-1 {
			t.Errorf("renew_leases: %v, want one renewed, the others %s", got, want)
		}
		if got := ask("check_leases", "reason"); got["held"] != 1 || got[want] != leases-1 {
			t.Errorf("check_leases: %v, want one held, the others %s", got, want)
		}
		_, err := conn.Exec(t.Context(), "SELECT pglock.fence(name, token, $1) FROM lease WHERE name = 'l2'", id)
		if sqlState(err) != "LK003" {
			t.Errorf("fence: %v, want LK003", err)
		}
	}
	execute(t, other, "ROLLBACK")
	if got := ask("renew_leases", "outcome"); got["broken"] != leases-1 {
		t.Errorf("afterwards: %v", got)
	}
}

func TestReleasesAndGrantsAfterThemGoOnWhileTheHistoryIsLocked(t *testing.T) {
	t.Parallel()
	for _, level := range []lockadmin.HistoryLevel{lockadmin.HistoryLosses, lockadmin.HistoryAll} {
		t.Run(string(level), func(t *testing.T) {
			db := pgtest.Parallel(t)
			conn, other := db.Conn(t), db.Conn(t)
			// The history is asked for each of so many leases. A wait for each would last longer than the limit.
			const leases = 50
			execute(t, conn, "SET statement_timeout = '4s'")
			execute(t, conn, "SELECT pglock.set_history('me', $1)", string(level))
			id := uuid.New()
			execute(t, conn, `CREATE TEMPORARY TABLE lease AS SELECT 'l' || i AS name, a.token
				FROM generate_series(1, $1::int) i, pglock.acquire_lease('l' || i, $2, gen_random_uuid(), 'h', '1 h') a`,
				leases, id)
			for _, mode := range []string{"shared", "exclusive", "exclusive", "shared", "shared"} {
				execute(t, conn, `SELECT pglock.acquire_lease('queue', gen_random_uuid(), $1, 'h', '1 h', p_mode => $2,
					p_wait => true)`, id, mode)
			}
			execute(t, conn, "SELECT pglock.keep_session($1, 'h', '1 h')", id)
			lockHistory(t, other)
			var released int
			if err := conn.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE r.released) FROM (
				SELECT array_agg(name) n, array_agg(token) t, array_agg($1::uuid) g, array_agg(0) s FROM lease) l,
				pglock.release_leases(n, t, g, s) r`, id).Scan(&released); err != nil || released != leases {
				t.Errorf("released: %d, %v", released, err)
			}
			for _, granted := range []int{1, 1, 2} {
				execute(t, conn, `SELECT pglock.release_lease(name, token, grant_id) FROM pglock.locks
					WHERE name = 'queue' AND expires_at > clock_timestamp()`)
				var held int
				if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pglock.get_lock('queue') WHERE held`).Scan(
					&held); err != nil || held != granted {
					t.Errorf("held: %d, %v, want %d", held, err, granted)
				}
			}
		})
	}
}

// A grant over a lease that ran out needs its entry. An end goes on without such a grant while the history is locked.
func TestEndGoesOnWhileTheHistoryLacksALeaseThatRanOut(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, other := db.Conn(t), db.Conn(t)
	locks := []struct{ name, over, held, waits, granted string }{ // granted: while the history is locked
		{"slot", "shared", "exclusive", "shared", "true"}, // in another slot
		{"limit", "limit", "exclusive", "limit", "false"},
		{"head", "exclusive", "shared", "exclusive", "false"},
	}
	ends := map[string]string{
		"release": "SELECT released::text FROM held, pglock.release_lease(name, token, grant_id)",
		"releases": `SELECT released::text FROM held,
			pglock.release_leases(ARRAY[name], ARRAY[token], ARRAY[grant_id], ARRAY[slot])`,
		"give up": "SELECT ended::text FROM held, pglock.give_up(" + someID + ", ARRAY[name], ARRAY[grant_id])",
	}
	acquire := func(name, mode, grant string) string {
		t.Helper()
		return answerOf(t, conn, fmt.Sprintf(`SELECT granted::text FROM pglock.acquire_lease('%s', %s, %s, 'h', '1 h',
			p_session_ttl => '1 h', p_wait => true, p_mode => '%[4]s', p_capacity => nullif('%[4]s' = 'limit', false)::int)`,
			name, grant, someID, mode))
	}
	each := func(do func(end, name string, i int)) {
		for end := range ends {
			for i, l := range locks {
				do(end, end+" "+l.name, i)
			}
		}
	}
	each(func(_, name string, i int) {
		acquire(name, locks[i].over, "gen_random_uuid()")
		execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp()
			WHERE name = $1 AND expires_at > now()`, name)
		acquire(name, locks[i].held, "gen_random_uuid()")
		acquire(name, locks[i].waits, "md5('"+name+"')::uuid")
	})
	lockHistory(t, other)
	each(func(end, name string, i int) {
		ended := answerOf(t, conn, fmt.Sprintf(`WITH held AS MATERIALIZED (
			SELECT * FROM pglock.locks WHERE name = '%s' AND expires_at > now()) %s`, name, ends[end]))
		if ended != "true" {
			t.Errorf("%s: ended %s", name, ended)
		}
		granted := answerOf(t, conn, "SELECT bool_or(held)::text FROM pglock.get_lock('"+name+"')")
		if want := locks[i].granted; granted != want {
			t.Errorf("%s: granted %s, want %s", name, granted, want)
		}
	})
	execute(t, other, "ROLLBACK")
	each(func(_, name string, i int) {
		if granted := acquire(name, locks[i].waits, "md5('"+name+"')::uuid"); granted != "true" {
			t.Errorf("%s, afterwards: granted %s", name, granted)
		}
	})
}

// A release beside slots that others hold, or that were given back, has nothing to write into the history.
func TestAReleaseAsksForTheHistoryOnlyForWhatRanOut(t *testing.T) {
	conn := pgtest.Parallel(t).Conn(t)
	for range 3 {
		answerOf(t, conn, `SELECT granted::text FROM pglock.acquire_lease('x', gen_random_uuid(), `+someID+`, 'h', '1 h',
			p_session_ttl => '1 h', p_wait => true, p_mode => 'limit', p_capacity => 2)`)
	}
	execute(t, conn, "BEGIN")
	ended := answerOf(t, conn, `WITH held AS MATERIALIZED (SELECT * FROM pglock.locks WHERE name = 'x' AND slot = 2)
		SELECT released::text FROM held, pglock.release_lease(name, token, grant_id, slot)`)
	locks := answerOf(t, conn, `SELECT count(*)::text FROM pg_locks
		WHERE pid = pg_backend_pid() AND relation = 'pglock.events'::regclass`)
	if ended != "true" || locks != "0" {
		t.Errorf("released: %s; it has %s locks of the history", ended, locks)
	}
	execute(t, conn, "ROLLBACK")
}
