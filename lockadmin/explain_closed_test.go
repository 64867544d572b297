package lockadmin_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// openly runs statements in a transaction that stays open, and returns the process of the server that has it.
func openly(t *testing.T, db *pgtest.DB, statements ...string) (conn *pgx.Conn, pid uint32) {
	t.Helper()
	conn = db.Conn(t)
	for _, sql := range append([]string{"BEGIN"}, statements...) {
		execute(t, conn, sql)
	}
	return conn, conn.PgConn().PID()
}

// behind begins a statement that waits for somebody, and waits until it does.
func behind(t *testing.T, db *pgtest.DB, conn *pgx.Conn, sql string) {
	t.Helper()
	wg := pgtest.Group(t)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	wg.Go(func() { _, _ = conn.Exec(ctx, sql) }) // its end is the test's
	look := db.Conn(t)
	pgtest.Eventually(t, "it waits", func() bool {
		var waits bool
		err := look.QueryRow(t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0",
			conn.PgConn().PID()).Scan(&waits)
		return err == nil && waits
	})
}

// A grant over a lease that ran out needs its entry in the history. One over a lease that was released does not.
func TestExplainNamesWhoeverKeepsTheHistoryFromTheNextGrant(t *testing.T) {
	t.Parallel()
	const ranOut, released = "clock_timestamp() - interval '10 s'", "'-infinity'"
	for what, c := range map[string]struct {
		lock    string // what somebody does with the history
		expires string
		waits   bool // somebody waits for the lock
		kind    string
		grave   lockadmin.Severity
	}{
		"locked":                {"LOCK TABLE pglock.events", ranOut, true, "history", "stuck"},
		"open to readers alone": {"LOCK TABLE pglock.events IN SHARE MODE", ranOut, true, "history", "stuck"},
		"nobody waits":          {"LOCK TABLE pglock.events", ranOut, false, "history", "warning"},
		"released":              {"LOCK TABLE pglock.events", released, true, "turn", "stuck"},
		"read":                  {"LOCK TABLE pglock.events IN ROW EXCLUSIVE MODE", ranOut, true, "turn", "stuck"},
	} {
		t.Run(what, func(t *testing.T) {
			db := pgtest.Parallel(t)
			conn := db.Conn(t)
			admin := newAdmin(t, db.Pool(t))
			for n, wait := range []bool{false, c.waits} {
				if n == 0 || wait {
					execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), $1,
						'1 h', p_wait => $2, p_session_ttl => '1 h')`, fmt.Sprint("app-", n+1), wait)
				}
			}
			execute(t, conn, `UPDATE pglock.locks SET acquired_at = acquired_at - interval '1 h',
				renewed_at = renewed_at - interval '1 h', ended_at = clock_timestamp() - interval '10 s',
				expires_at = `+c.expires)
			_, pid := openly(t, db, c.lock)
			pgtest.Eventually(t, "the transaction is older than a moment", func() bool {
				var old bool
				err := conn.QueryRow(t.Context(), `SELECT clock_timestamp() - xact_start > '1500 ms'
					FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&old)
				return err == nil && old
			})
			e := must.Get(admin.Explain(t.Context(), "report"))(t)
			v := e.Verdicts[0]
			if v.Kind != c.kind || v.Severity != c.grave {
				t.Errorf("%s, %s, want %s, %s: %s", v.Kind, v.Severity, c.kind, c.grave, v.Text)
			}
			named := strings.Contains(v.Text, fmt.Sprintf("server process %d ", pid)) &&
				v.Steps[len(v.Steps)-1].Command == fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid)
			if named != (c.kind == "history") {
				t.Errorf("%s: %+v", v.Text, v.Steps)
			}
		})
	}
}

// Somebody may want to lock the history, and wait for others: both are named, and whoever waits loses least.
func TestExplainNamesThoseWhoKeepWhoeverWantsToLockTheHistory(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')`)
	execute(t, conn, `UPDATE pglock.locks SET acquired_at = acquired_at - interval '1 h',
		renewed_at = renewed_at - interval '1 h', expires_at = clock_timestamp() - interval '10 s'`)
	_, reader := openly(t, db, "LOCK TABLE pglock.events IN ACCESS SHARE MODE")
	wants, pid := openly(t, db)
	behind(t, db, wants, "LOCK TABLE pglock.events")
	pgtest.Eventually(t, "who is in the way is named", func() bool {
		e := must.Get(admin.Explain(t.Context(), "report"))(t)
		v := e.Verdicts[0]
		return v.Kind == "history" && strings.Contains(v.Text, fmt.Sprintf("server process %d ", pid)) &&
			strings.Contains(v.Text, fmt.Sprintf("It waits for process %d", reader)) &&
			v.Steps[0].Command == fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid) &&
			v.Steps[1].Command == fmt.Sprintf("SELECT pg_terminate_backend(%d)", reader)
	})
}

// Somebody waits for a lock of a whole table, behind the healthy write of a holder: the write is not to be ended,
// unless whoever waits would lose something.
func TestWhoeverWaitsForAWholeTableIsToBeEnded(t *testing.T) {
	t.Parallel()
	for what, did := range map[string]string{"nothing": "", "a change": "CREATE TABLE changed (id int)"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			admin := newAdmin(t, db.Pool(t))
			execute(t, db.Conn(t),
				`SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')`)
			_, writer := openly(t, db,
				"SELECT pglock.fence(l.name, l.token, l.grant_id) FROM pglock.locks l WHERE l.name = 'report'")
			wants, pid := openly(t, db)
			if did != "" {
				execute(t, wants, did)
			}
			behind(t, db, wants, "LOCK TABLE pglock.locks")
			first, last := pid, writer
			if did != "" {
				first, last = writer, pid
			}
			end := func(pid uint32) string { return fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid) }
			e := must.Get(admin.Explain(t.Context(), "report"))(t)
			v := e.Verdicts[0]
			if v.Kind != "table" || v.Steps[0].Command != end(first) || v.Steps[1].Command != end(last) ||
				!strings.HasPrefix(v.Who, fmt.Sprintf("process %d", first)) {
				t.Errorf("%s: %s: %+v", v.Who, v.Text, v.Steps)
			}
			if !strings.Contains(v.Text, fmt.Sprintf("server process %d ", pid)) ||
				!strings.Contains(v.Text, "waits for a lock of the whole table locks") ||
				!strings.Contains(v.Text, fmt.Sprintf("It waits for process %d", writer)) ||
				!strings.HasSuffix(v.Text, "(a fenced write).") {
				t.Error(v.Text)
			}
			var all lockadmin.Overview
			pgtest.Eventually(t, "the transaction is older than a moment", func() bool {
				all = must.Get(admin.Overview(t.Context(), 20))(t)
				return len(all.Locks) == 1
			})
			if s := all.Locks[0]; s.Text != "somebody waits to lock a whole table" || s.Who != v.Who ||
				s.Next.Command != end(first) {
				t.Errorf("the overview says %+v", s)
			}
			execute(t, db.Conn(t), v.Steps[0].Command)
			pgtest.Eventually(t, "the others go on", func() bool {
				return first == writer || must.Get(admin.Explain(t.Context(), "report"))(t).State == lockadmin.LockHeld
			})
		})
	}
}

// If the one before it has closed the table, too, that is the cause.
func TestWhoeverHasClosedATableIsToBeEndedBeforeWhoeverWaitsForIt(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	_, first := openly(t, db, "LOCK TABLE pglock.locks IN EXCLUSIVE MODE")
	wants, _ := openly(t, db)
	behind(t, db, wants, "LOCK TABLE pglock.locks")
	all := must.Get(admin.Explain(t.Context(), "report"))(t).Verdicts
	if len(all) == 0 || len(all[0].Steps) < 3 {
		t.Fatalf("%+v", all)
	}
	v := all[0]
	if v.Kind != "table" || !strings.HasPrefix(v.Who, fmt.Sprintf("process %d", first)) ||
		v.Steps[1].Command != fmt.Sprintf("SELECT pg_terminate_backend(%d)", first) ||
		v.Steps[2].Do != "Look again: 1 more wants to lock a whole table." {
		t.Errorf("%s: %s: %+v", v.Who, v.Text, v.Steps)
	}
}

// A write that waits at the fence has locked a row there, and no table.
func TestAWriteAtTheFenceKeepsNobodyFromATable(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	conn := db.Conn(t)
	execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')`)
	const fence = `SELECT pglock.fence(l.name, l.token, l.grant_id, 'report', true) FROM pglock.locks l
		WHERE l.name = 'report'`
	execute(t, conn, fence) // so that the fence has a row
	openly(t, db, fence)
	next, _ := openly(t, db)
	behind(t, db, next, fence)
	wants, pid := openly(t, db)
	behind(t, db, wants, "LOCK TABLE pglock.locks")
	v := must.Get(admin.Explain(t.Context(), "report"))(t).Verdicts[0]
	if v.Kind != "table" || v.Steps[0].Command != fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid) {
		t.Errorf("%s: %+v; want that process %d is ended first", v.Text, v.Steps, pid)
	}
}

// A grant that waits for the history has locked the lock's row meanwhile. Whoever it waits for is to blame.
func TestExplainNamesWhoeverKeepsThoseWhoHaveLockedTheRow(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'app-1', '1 h')`)
	_, pid := openly(t, db, "LOCK TABLE pglock.events")
	grants, other := openly(t, db, "SELECT FROM pglock.locks WHERE name = 'report' FOR UPDATE")
	behind(t, db, grants, "LOCK TABLE pglock.events IN ROW EXCLUSIVE MODE")
	var e lockadmin.Explanation
	pgtest.Eventually(t, "the row is found locked", func() bool {
		var err error
		if e, err = admin.Explain(t.Context(), "report"); err != nil {
			t.Fatal(err)
		}
		return e.Verdicts[0].Kind == "row"
	})
	v := e.Verdicts[0]
	if !strings.Contains(v.Text, fmt.Sprintf("server process %d ", other)) || !strings.Contains(v.Text,
		fmt.Sprintf("It waits itself for table pglock.events: server process %d ", pid)) ||
		strings.Contains(v.Because, "a person or a script") {
		t.Errorf("%s %s", v.Text, v.Because)
	}
	for _, s := range v.Steps {
		if strings.Contains(s.Command, fmt.Sprint(other)) {
			t.Errorf("whoever waits is to be ended: %+v", s)
		}
	}
	if !strings.HasPrefix(v.Who, fmt.Sprintf("process %d", pid)) {
		t.Errorf("the cause is %s, want process %d", v.Who, pid)
	}
}

// calls counts the statements that call a function.
type calls struct {
	of string
	n  atomic.Int64
}

func (c *calls) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, c.of+"(") {
		c.n.Add(1)
	}
	return ctx
}

func (c *calls) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// counted is an Admin whose calls of a function are counted.
func counted(t *testing.T, db *pgtest.DB, of string) (*lockadmin.Admin, *calls) {
	t.Helper()
	c := &calls{of: of}
	return newAdmin(t, db.Pool(t, func(config *pgxpool.Config) { config.ConnConfig.Tracer = c })), c
}

// What a look needs of the lease, and the ticket that it was granted to, come with one statement.
func TestALookReadsTheLockOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	conn := db.Conn(t)
	admin, reads := counted(t, db, "get_lock")
	for _, wait := range []bool{false, true} {
		execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'one', '1 h',
			p_wait => $1)`, wait)
	}
	e := must.Get(admin.Explain(t.Context(), "report"))(t)
	if n := reads.n.Load(); n != 1 || e.Queue.Alive == nil || e.Queue.HandedPast {
		t.Errorf("the look read the lock %d times, want once: %+v", n, e.Queue)
	}
}

// However many locks are looked at, one look waits for whoever has locked the history, and all know of it.
func TestALookAtManyLocksWaitsForTheHistoryOnce(t *testing.T) {
	t.Parallel()
	const many = 60
	db := pgtest.Database(t)
	conn := db.Conn(t)
	admin, past := counted(t, db, "list_history")
	execute(t, conn,
		`INSERT INTO pglock.locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
		SELECT 'a' || n, n, gen_random_uuid(), gen_random_uuid(), 'ailing', '1 h', now() - interval '50 min',
			now() - interval '50 min', now() + interval '10 min' FROM generate_series(1, $1::int) n`, many)
	_, pid := openly(t, db, "LOCK TABLE pglock.events")
	began := time.Now()
	all, err := admin.Overview(t.Context(), many)
	if err != nil || len(all.Locks) != many {
		t.Fatalf("%d locks, %v", len(all.Locks), err)
	}
	if n := past.n.Swap(0); n != 1 {
		t.Errorf("the overview asked for the history %d times, want once", n)
	}
	if len(all.Unseen) != 1 || !strings.Contains(all.Unseen[0], fmt.Sprintf("server process %d ", pid)) {
		t.Errorf("unseen: %q", all.Unseen)
	}
	var leases []pglock.LockInfo
	for _, s := range all.Locks {
		leases = append(leases, pglock.LockInfo{Name: s.Lock, Held: true})
	}
	must.Get(admin.Summaries(t.Context(), leases))(t)
	if n := past.n.Load(); n != 1 {
		t.Errorf("the summaries asked for the history %d times, want once", n)
	}
	t.Logf("both took %v", time.Since(began))
}
