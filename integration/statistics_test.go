package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// crowded fills the tables as one name that everybody wants does, and has the server learn that nearly every row is of
// that name. Nothing else is in them but what a test adds.
func crowded(t *testing.T, look *peer, n int) {
	t.Helper()
	addCrowd(t, look, 1, n)
	look.exec(t,
		`VACUUM ANALYZE pglock.sessions, pglock.locks, pglock.spent_grants, pglock.fences, pglock.receipts, pglock.done_keys, pglock.events`)
	// whose rows are then read where they are, and counted: a vacuum would let the index answer alone
	look.exec(t, `ANALYZE pglock.waiters`)
}

// addCrowd adds the rows that have these numbers.
func addCrowd(t *testing.T, look *peer, first, last int) {
	t.Helper()
	look.exec(t, strings.NewReplacer("$F", fmt.Sprint(first), "$N", fmt.Sprint(last)).Replace(`
		INSERT INTO pglock.sessions SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 'crowd', clock_timestamp() + interval '1 day' FROM generate_series($F, $N) n;
		INSERT INTO pglock.locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
			SELECT CASE n WHEN 1 THEN 'dominant' ELSE 'lock ' || n END, n, gen_random_uuid(), gen_random_uuid(), 'crowd', '1 day', now(), now(), now() + interval '1 day' FROM generate_series($F, $N) n;
		INSERT INTO pglock.waiters SELECT 'dominant', n, 'exclusive', NULL, md5(n::text)::uuid, ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, NULL, false, 'crowd', '1 min', NULL, now()
			FROM generate_series($F, $N) n;
		INSERT INTO pglock.spent_grants SELECT gen_random_uuid(), now() FROM generate_series($F, $N);
		INSERT INTO pglock.fences SELECT 'dominant/' || n, 1, 'dominant', 0, gen_random_uuid(), '3', now() FROM generate_series($F, $N) n;
		INSERT INTO pglock.receipts SELECT gen_random_uuid(), gen_random_uuid(), now() FROM generate_series($F, $N);
		INSERT INTO pglock.done_keys SELECT 'done ' || n, 'dominant', 1, now(), now() + interval '1 day' FROM generate_series($F, $N) n;
		INSERT INTO pglock.events (kind, lock_name, token, holder) SELECT 'takeover', 'dominant', n, 'crowd' FROM generate_series($F, $N) n;
		SELECT setval('pglock.fencing_token_seq', $N), setval('pglock.ticket_seq', $N)`))
}

// rowsRead tells how many rows of the library's tables a statement reads, by index and by reading whole tables, and
// which tables it reads whole.
func (p *peer) rowsRead(t *testing.T, sql string, args ...any) (rows int, whole string) {
	t.Helper()
	p.exec(t, `BEGIN`)
	count := func() (read int, wholly map[string]int) {
		if err := p.QueryRow(t.Context(), `SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int,
			coalesce(jsonb_object_agg(relname, seq_scan) FILTER (WHERE seq_scan > 0 AND relname <> 'installation'), '{}')
			FROM pg_stat_xact_user_tables WHERE schemaname = 'pglock'`).Scan(&read, &wholly); err != nil {
			t.Fatal(err)
		}
		return read, wholly
	}
	before, then := count() // of transactions before, which the server has not collected yet
	p.exec(t, sql, args...)
	after, now := count()
	p.exec(t, `ROLLBACK`)
	for table, n := range now {
		if n > then[table] {
			whole += " " + table
		}
	}
	return after - before, whole
}

// reading is a statement, and how many rows it reads at most.
type reading struct {
	what, sql string
	rows      int
}

// readings are calls of nearly every function. It makes the locks for them, beside those of the crowd.
func readings(t *testing.T, look, p *peer) []reading {
	t.Helper()
	const many = `array_fill('h'::text, ARRAY[32]), array_fill('1 min'::interval, ARRAY[32]), array_fill(NULL::jsonb, ARRAY[32]), array_fill(false, ARRAY[32]),
		array_fill('%s'::text, ARRAY[32]), array_fill(%s::int, ARRAY[32]), array_fill(%v, ARRAY[32]), '10 s', array_fill(NULL::uuid, ARRAY[32]), array_fill(false, ARRAY[32])`
	names32 := func(prefix string) string {
		return `ARRAY(SELECT '` + prefix +
			`' || n FROM generate_series(1, 32) n), ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 32))`
	}
	held, reader, place := look.mustAcquire(t, "held", time.Hour), look.mustAsk(t, "read", "shared"), look.mustAsk(t,
		"place", "limit 3")
	waited := look.mustAcquire(t, "waited for", time.Hour)
	first := p.mustEnqueue(t, "waited for", "exclusive", nil)
	for n := range 32 {
		look.mustAcquire(t, fmt.Sprint("held ", n+1), time.Hour)
		freed(t, look, fmt.Sprint("free ", n+1))
	}
	freed(t, look, "free")
	look.exec(t, `CREATE TABLE guarded (id int GENERATED ALWAYS AS IDENTITY)`)
	look.exec(t, `SELECT pglock.guard_table('guarded', p_resource => 'guarded')`)
	look.exec(t, `SELECT pglock.give_up(gen_random_uuid(), '{spent}', ARRAY[gen_random_uuid()], true)`)
	expired := look.mustAcquire(t, "run out", time.Hour)
	endNow(t, look, "run out")
	dominant := one[string](t, look, `SELECT grant_id::text FROM pglock.locks WHERE name = 'dominant'`)
	lease := func(g grant) string { return fmt.Sprintf(`'%s', %d, '%s'`, g.name, g.token, g.id) }
	array := func(g grant) string { return fmt.Sprintf(`'{%s}', '{%d}', '{%s}'`, g.name, g.token, g.id) }
	leases := `ARRAY(SELECT name FROM l), ARRAY(SELECT token FROM l), ARRAY(SELECT grant_id FROM l), ARRAY(SELECT slot FROM l)`
	const theLeases = `WITH l AS MATERIALIZED (SELECT name, token, grant_id, slot FROM pglock.locks WHERE name = ANY (ARRAY(SELECT 'held ' || n FROM generate_series(1, 32) n)) ORDER BY name) `
	ask := func(name, more string) string {
		return `SELECT pglock.acquire_lease('` + name + `', gen_random_uuid(), '` + p.key.String() + `', 'p', '1 min'` +
			more + `)`
	}
	return []reading{
		{"a new lock", ask(`new`, ``), 10},
		{"a free lock", ask(`free`, ``), 10},
		{"a held lock", ask(`held`, ``), 10},
		{"a held lock, queued for", ask(`held`, `, p_wait => true`), 30},
		{"a lock that is queued for", ask(`waited for`, `, p_wait => true`), 30},
		{"the dominant lock", ask(`dominant`, ``), 10},
		{"the dominant lock, queued for", ask(`dominant`, `, p_wait => true`), 150}, // the place is counted to 100
		{"the dominant lock, shared", ask(`dominant`, `, p_mode => 'shared'`), 10},
		{"a lock that ran out", ask(`run out`, ``), 20},
		{"a lock with a spent grant", ask(`spent`, ``), 20},
		{"a lock that is read, shared", ask(`read`, `, p_mode => 'shared'`), 30},
		{"a place", ask(`place`, `, p_mode => 'limit', p_capacity => 3`), 30},
		{"a place with another limit", ask(`free`, `, p_mode => 'limit', p_capacity => 4`), 20},
		{"32 new locks", `SELECT pglock.acquire_leases(` + names32("new ") + `, '` + p.key.String() + `', ` +
			fmt.Sprintf(many, "exclusive", "NULL", false) + `)`, 320},
		{"32 free locks", `SELECT pglock.acquire_leases(` + names32("free ") + `, '` + p.key.String() + `', ` +
			fmt.Sprintf(many, "exclusive", "NULL", false) + `)`, 320},
		{"32 held locks, queued for", `SELECT pglock.acquire_leases(` + names32("held ") + `, '` + p.key.String() +
			`', ` + fmt.Sprintf(many, "exclusive", "NULL", true) + `)`, 32 * 30},
		{"32 free locks, shared", `SELECT pglock.acquire_leases(` + names32("free ") + `, '` + p.key.String() + `', ` +
			fmt.Sprintf(many, "shared", "NULL", true) + `)`, 32 * 30},
		{"a release", `SELECT pglock.release_lease(` + lease(held) + `, 0)`, 10},
		{"a release, slot unknown", `SELECT pglock.release_lease(` + lease(reader) + `)`, 20},
		{"a release of a place", `SELECT pglock.release_lease(` + lease(place) + `, 1)`, 20},
		{"a hand-over", `SELECT pglock.release_lease(` + lease(waited) + `, 0)`, 40},
		{"a hand-over of the dominant lock", `SELECT pglock.release_lease('dominant', 1, '` + dominant + `', 0)`, 40},
		{"a hand-over by name", `SELECT pglock.hand_over(` + lease(waited) + `, 'peer')`, 60},
		{"32 releases", theLeases + `SELECT pglock.release_leases(` + leases + `)`, 32 * 12},
		{"32 renewals", theLeases + `SELECT pglock.renew_leases(` + leases + `)`, 32 * 12},
		{"32 checks", theLeases + `SELECT pglock.check_leases(` + leases + `)`, 32 * 12},
		{"a renewal", `SELECT pglock.renew_leases(` + array(held) + `, '{0}', '1 s')`, 10},
		{"a renewal of a reader", `SELECT pglock.renew_leases(` + array(reader) + `, '{1}', '1 s')`, 10},
		{"a check", `SELECT pglock.check_leases(` + array(held) + `, '{NULL}')`, 10},
		{"a waiter gives up", `SELECT pglock.give_up('` + p.key.String() + `', '{waited for}', ARRAY['` +
			first.id.String() + `'::uuid])`, 30},
		{"one of the dominant gives up",
			`SELECT pglock.give_up(gen_random_uuid(), '{dominant}', ARRAY[md5('2500')::uuid])`, 150},
		{"a request given up and spent",
			`SELECT pglock.give_up(gen_random_uuid(), '{held}', ARRAY[gen_random_uuid()], true)`, 30},
		{"a look", `SELECT pglock.look('` + p.key.String() + `', 'p', '10 s')`, 20},
		{"a look that extends the session", `SELECT pglock.look('` + p.key.String() + `', 'p', '1 h')`, 20},
		{"a connection that is marked", `SELECT pglock.mark_connection('` + p.key.String() +
			`', pg_backend_pid(), 'p', 'v')`, 10},
		{"a look for a circle", `SELECT pglock.look('` + p.key.String() +
			`', 'p', '10 s', ARRAY(SELECT ticket FROM pglock.waiters WHERE grant_id = '` + first.id.String() + `'))`,
			60},
		{"a look of a session that does not wait", `SELECT pglock.look(gen_random_uuid(), 'p', '10 s')`, 10},
		{"the end of a session", `SELECT pglock.end_session('` + p.key.String() + `')`, 10},
		{"an announcement", `SELECT pglock.announce('{held}', '{0}')`, 10},
		{"a watch", `SELECT pglock.watch('held', '1 min')`, 10},
		{"a fence", `SELECT pglock.fence(` + lease(held) +
			`, 'dominant/77', p_receipt_id => gen_random_uuid(), p_write_id => gen_random_uuid())`, 20},
		{"a fence that is stale", `DO $$ BEGIN PERFORM pglock.fence(` + lease(expired) +
			`, 'dominant/77'); EXCEPTION WHEN OTHERS THEN END $$`, 20},
		{"a write without a fence", `DO $$ BEGIN INSERT INTO guarded DEFAULT VALUES; EXCEPTION WHEN OTHERS THEN END $$`,
			10},
		{"a seal of what was written", `DO $$ BEGIN PERFORM pglock.fence(` + lease(held) +
			`, 'dominant/77'); PERFORM pglock.seal('{dominant/77}'); SET CONSTRAINTS ALL IMMEDIATE; END $$`, 30},
		{"a seal", `WITH f AS MATERIALIZED (SELECT pglock.fence(` + lease(held) + `, 'held')) SELECT FROM f`, 20},
		{"work done once", `SELECT pglock.once('a new key', ` + lease(held) + `)`, 30},
		{"an outcome", `SELECT pglock.outcome(gen_random_uuid(), gen_random_uuid(), pglock.database_id())`, 10},
		{"a break", `SELECT pglock.break_lock('held', 'test', 'test')`, 30},
		{"one lock described", `SELECT pglock.get_lock('held')`, 10},
		{"whether a lock may not be well", `SELECT pglock.list_suspects('{held}')`, 1100},
		{"whether a holder lives", `SELECT pglock.holder_lives('{held}', '{0}')`, 20},
		{"a sign of life", `SELECT pglock.mark_connection('` + p.key.String() + `', NULL, 'p', 'v', '1 h')`, 10},
		{"a page of locks", `SELECT pglock.list_locks('l', true, '', 10)`, 60},
		{"a page of waiters", `SELECT pglock.list_waiters('dominant', 10)`, 100},
		{"a page of fences", `SELECT pglock.list_fences('dominant', 10)`, 30},
		{"the fence of a resource", `SELECT pglock.list_fences('dominant/77', 10)`, 10},
		{"no fence", `SELECT pglock.list_fences('nothing')`, 10},
		{"the processes of a lock", `SELECT pglock.list_backends('held')`, 20},
		{"those of one with many fences", `SELECT pglock.list_backends('dominant')`, 20},
		{"whom a lock holds up", `SELECT pglock.list_waits('waited for', 10)`, 60},
		{"what is in the way of a waiter", `SELECT pglock.list_obstacles('dominant')`, 20},
		{"whose way a lock is in", `SELECT pglock.list_obstructed('dominant')`, 10},
		{"a page of the history", `SELECT pglock.list_history('', 10)`, 20},
		{"a page of tenures", `SELECT pglock.replay_history('', 10, 'dominant', 100)`, 60},
		{"those of one lock", `SELECT pglock.replay_history('dominant', 10, '', 100)`, 30},
		{"tickets that nobody waits for", `SELECT pglock.own_tickets('` + p.key.String() + `', ARRAY[1, 2, 3])`, 20},
		{"several fences", `SELECT pglock.fence_all(ARRAY['held'], ARRAY[` + fmt.Sprint(held.token) + `], ARRAY['` +
			held.id.String() + `'::uuid])`, 20},
		{"a step of a prune", `SELECT pglock.prune_locks('0', 10)`, 300},
	}
}

// Every function reads a bounded number of rows and no table whole, whatever one long queue has made of the statistics:
// a waiter of one lock is not in the way of other locks. Each is called often enough for a plan that is kept.
func TestEveryFunctionReadsFewRowsBesideOneLongQueue(t *testing.T) {
	pgtest.Long(t, "TestTheWorkGrowsWithWhatIsAskedFor")
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	crowded(t, look, 5000)
	for _, c := range readings(t, look, p) {
		c.again(t, p, 7)
	}
}

// again makes the call several times, and tells the first that reads too much.
func (c reading) again(t *testing.T, p *peer, times int) {
	t.Helper()
	for call := 1; call <= times; call++ {
		if rows, whole := p.rowsRead(t, c.sql); whole != "" || rows > c.rows {
			t.Errorf("%s, call %d: %d rows were read, want %d at most; tables read whole: %s", c.what, call, rows,
				c.rows, whole)
			return
		}
	}
}

// A connection keeps its plans, and may have made them when nobody had used the tables yet, and the server knew it.
// When they have filled up it reads no table whole for that.
func TestPlansOfEmptyTablesSuitFullOnes(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	for _, table := range []string{"locks", "sessions", "waiters", "spent_grants", "fences", "receipts", "done_keys",
		"events"} {
		look.exec(t, `ALTER TABLE pglock.`+table+` SET (autovacuum_enabled = off)`)
		look.exec(t, `VACUUM ANALYZE pglock.`+table)
	}
	addCrowd(t, look, 1, 1)
	short := []string{"a free lock", "a release", "a held lock, queued for", "a place with another limit",
		"a hand-over", "a look that extends the session",
		"a fence that is stale", "work done once", "whom a lock holds up", "a write without a fence",
		"a connection that is marked",
		"the processes of a lock", "a step of a prune"}
	all := pgtest.Some(t, readings(t, look, p), func(c reading) bool { return slices.Contains(short, c.what) })
	for _, c := range all {
		for range 7 {
			p.rowsRead(t, c.sql)
		}
	}
	addCrowd(t, look, 2, 5000)
	for _, c := range all {
		c.again(t, p, 1)
	}
}

// What reads everything reads it once, also if the server takes the tables for empty, because it has last counted the
// rows when there were none.
func TestWhatReadsEverythingSuitsTablesThatWereEmpty(t *testing.T) {
	pgtest.Long(t, "TestPlansOfEmptyTablesSuitFullOnes")
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	for _, table := range []string{"locks", "sessions", "waiters", "fences", "events"} {
		look.exec(t, `ALTER TABLE pglock.`+table+` SET (autovacuum_enabled = off)`)
		look.exec(t, `VACUUM ANALYZE pglock.`+table)
	}
	addCrowd(t, look, 1, 20_000)
	// where a fifth of a second is right, and each row with each takes more than twenty
	p.exec(t, `SET statement_timeout = '10s'`)
	for _, sql := range []string{
		`list_sessions(1000)`, `list_sessions(1000, p_order => 'leases')`, `list_locks(p_order => 'waiting')`,
		`list_locks(p_order => 'age', p_free => true)`, `list_locks(p_order => 'expiry', p_queued => true)`,
		`list_waiters(p_order => 'age')`, `list_fences(p_order => 'age')`, `statistics(10)`,
		`list_locks()`, `list_waiters('')`,
		`list_history('')`, `diagnose()`, `sweep()`, `break_session(gen_random_uuid(), 'test', 'test')`,
	} {
		p.exec(t, `SELECT FROM pglock.`+sql)
	}
}

// What is done for many costs what they are, not their square: leaving a long queue, a hand-over to many readers,
// sessions that are extended, and a seal where the check inside COMMIT is used up.
func TestTheWorkGrowsWithWhatIsAskedFor(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	crowded(t, look, 10_000)
	held := look.mustAcquire(t, "x", time.Hour)
	const readers = 1000
	ids := make([]uuid.UUID, readers)
	for i := range ids {
		ids[i] = uuid.New()
	}
	look.exec(t,
		`INSERT INTO pglock.waiters SELECT 'x', 1000000 + n, 'shared', NULL, ($1::uuid[])[n], '00000000-0000-4000-8000-000000000001', NULL, false, 'r', '1 min', NULL, now()
		FROM generate_series(1, $2::int) n`, ids, readers)
	for what, c := range map[string]struct {
		sql  string
		args []any
		each int // rows for each of n
		n    int
	}{
		"1,000 readers are handed the lock": {`SELECT pglock.release_lease('x', $1, $2, 0)`,
			[]any{held.token, held.id.String()}, 20, readers},
		"2,000 of 10,000 leave":  {`SELECT pglock.give_up(gen_random_uuid(), array_fill('dominant'::text, ARRAY[2000]), ARRAY(SELECT grant_id FROM pglock.waiters WHERE name = 'dominant' AND ticket > 8000 ORDER BY ticket LIMIT 2000))`, nil, 3, 2000},
		"1,000 readers give up":  {`SELECT pglock.give_up(gen_random_uuid(), array_fill('x'::text, ARRAY[$2::int]), $1)`, []any{ids, readers}, 3, readers},
		"one more behind 10,000": {`SELECT pglock.acquire_lease('dominant', gen_random_uuid(), '00000000-0000-4000-8000-000000000009', 'p', '1 min', p_wait => true)`, nil, 150, 1},
		"a session is extended": {`SELECT pglock.look('00000000-0000-4000-8000-000000000009', 'p', '20 s')`, nil, 20,
			1},
		"a session ends": {`SELECT pglock.end_session('00000000-0000-4000-8000-000000000009')`, nil, 20, 1},
	} {
		if rows, whole := p.rowsRead(t, c.sql, c.args...); rows > c.each*c.n || whole != "" &&
			!strings.Contains(what, "of 10,000") {
			t.Errorf("%s: %d rows were read, want %d at most; tables read whole: %s", what, rows, c.each*c.n, whole)
		}
	}
	look.exec(t, `UPDATE pglock.waiters SET session_id = '00000000-0000-4000-8000-000000000002'`)
	look.exec(t, `ANALYZE pglock.waiters`)
	if rows, whole := newPeer(t, db.URL()).rowsRead(t,
		`SELECT pglock.look(gen_random_uuid(), 'p', '20 s')`); rows > 20 || whole != "" {
		t.Errorf("a look, where all tickets are another session's: %d rows were read; tables read whole: %s", rows,
			whole)
	}
	g := p.mustAcquire(t, "sealed", time.Hour)
	p.exec(t, `BEGIN`)
	must.Do(t, p.fence(t.Context(), g, "sealed"))
	const read = `SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::int FROM pg_stat_xact_user_tables WHERE schemaname = 'pglock'`
	before := one[int](t, p, read)
	p.exec(t, `SET CONSTRAINTS ALL IMMEDIATE; SELECT pglock.seal('{sealed}')`)
	if n := one[int](t, p, read) - before; n > 10 {
		t.Errorf("a seal has read %d rows", n)
	}
	p.exec(t, `ROLLBACK`)
}

// A connection plans its renewals once, perhaps when a single lock has ever been used, and under settings that forbid
// something to the planner. The plan reads the row of each lease by its key when thousands are held, which nobody has
// counted yet, and what is read of each that is lost does not grow with the tables either.
func TestThePlanOfTheFirstRenewalSuitsThousands(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	patientTransactions(t, look)
	look.exec(t, `ALTER TABLE pglock.locks SET (autovacuum_enabled = false)`)
	look.exec(t, `ALTER TABLE pglock.events SET (autovacuum_enabled = false)`)
	look.mustAcquire(t, "n0", time.Hour)
	look.exec(t, `ANALYZE pglock.locks, pglock.events`)
	const leases = `pglock.%s(ARRAY(SELECT 'n' || i FROM generate_series(1, $1::int) i), ARRAY(SELECT i + $2::int FROM generate_series(1, $1::int) i),
		ARRAY(SELECT md5(i::text)::uuid FROM generate_series(1, $1::int) i), array_fill(0, ARRAY[$1::int]))`
	renew, check := `SELECT outcome FROM `+fmt.Sprintf(leases, "renew_leases"), `SELECT reason FROM `+
		fmt.Sprintf(leases, "check_leases")
	planned := make(map[string]*peer)
	for _, forbidden := range []string{"seqscan", "nestloop", "tidscan", "indexscan, bitmapscan"} {
		p := newPeer(t, db.URL())
		for _, of := range strings.Split(forbidden, ", ") {
			p.exec(t, `SET enable_`+of+` = off`)
		}
		for range 8 { // the server may keep a plan from the sixth time on
			p.exec(t, check, 1, 0)
			p.exec(t, renew, 1, 0)
		}
		p.exec(t, `RESET ALL`)
		planned[forbidden] = p
	}
	const locks = 3000
	look.exec(t,
		`INSERT INTO pglock.locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
		SELECT 'n' || i, i, md5(i::text)::uuid, gen_random_uuid(), 'h', '1 h', now(), now(), now() + interval '1 h' FROM generate_series(1, $1::int) i`, locks)
	look.exec(t,
		`INSERT INTO pglock.events (kind, lock_name, token) SELECT 'takeover', 'n' || (1 + i % 2), 1000000 + i FROM generate_series(1, $1::int) i`, locks)
	for forbidden, p := range planned {
		for _, c := range []struct{ n, stale, each int }{
			{1, 0, 3}, {100, 0, 3}, {1000, 0, 3}, // a row is found, locked and written: each of these reads it
			{2, -1, 12}, {100, -1, 12}, // lost, and a greater token says so
		} {
			if rows, whole := p.rowsRead(t, renew, c.n, c.stale); rows > c.each*c.n+5 || whole != "" {
				t.Errorf("planned without %s: the renewal of %d leases (tokens %+d) has read %d rows, want %d at "+
					"most; tables read whole: %s",
					forbidden, c.n, c.stale, rows, c.each*c.n+5, whole)
			}
			want := map[bool]string{true: "renewed", false: "released"}[c.stale == 0]
			if n := one[int](t, p, `SELECT count(*)::int FROM (`+renew+`) r WHERE outcome = '`+want+`'`, c.n,
				c.stale); n != c.n {
				t.Errorf("%d of %d leases are %s", n, c.n, want)
			}
		}
	}
}
