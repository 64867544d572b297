package lockadmin_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

const million = 1_000_000

// multitude is a database with a million held locks, a million waiters (half of them for one lock), a million fences
// and ten thousand sessions, and no statistics about any of it.
func multitude(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.Database(t)
	conn := db.Conn(t)
	began := time.Now()
	execute(t, conn,
		`ALTER TABLE pglock.locks SET (autovacuum_enabled = off); ALTER TABLE pglock.waiters SET (autovacuum_enabled = off);
		ALTER TABLE pglock.fences SET (autovacuum_enabled = off); ALTER TABLE pglock.sessions SET (autovacuum_enabled = off)`)
	execute(t, conn,
		`INSERT INTO pglock.locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
		SELECT 'lock/' || lpad(i::text, 7, '0'), i, gen_random_uuid(), pglock.session_of(lpad((i % 10000)::text, 32, '0')::uuid), 'holder ' || i % 10000, '1 h',
			clock_timestamp() - i * interval '1 s', clock_timestamp() - i * interval '1 ms', clock_timestamp() + interval '1 h' + i * interval '1 ms'
		FROM generate_series(1, $1::int) i`, million)
	execute(t, conn,
		`INSERT INTO pglock.waiters (name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
		SELECT CASE WHEN i <= $1 / 2 THEN 'lock/' || lpad(i::text, 7, '0') ELSE 'lock/0000500' END, i, 'exclusive', gen_random_uuid(),
			pglock.session_of(lpad((i % 10000)::text, 32, '0')::uuid), false, 'waiter ' || i % 10000, '30 s', clock_timestamp() - ($1 - i) * interval '1 ms'
		FROM generate_series(1, $1::int) i`, million)
	execute(t, conn, `INSERT INTO pglock.sessions (session_id, holder, alive_until, version)
		SELECT pglock.session_of(lpad(i::text, 32, '0')::uuid), 'client ' || i, clock_timestamp() + interval '1 h', 'v1.0.0' FROM generate_series(0, 9999) i`)
	execute(t, conn,
		`INSERT INTO pglock.fences (resource, last_token, lock_name, slot, grant_id, fenced_xact, advanced_at)
		SELECT 'row/' || lpad(i::text, 7, '0'), i, 'lock/' || lpad((i % 1000)::text, 7, '0'), 0, gen_random_uuid(), '3', clock_timestamp() - i * interval '1 s'
		FROM generate_series(1, $1::int) i`, million)
	t.Logf("filled in %s", time.Since(began).Round(time.Second))
	return db
}

// taken is how long f takes, and by how much it lets the heap grow at most.
func taken(t *testing.T, f func(sample func())) (time.Duration, uint64) {
	t.Helper()
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var most uint64
	began := time.Now()
	f(func() {
		runtime.GC()
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
	})
	return time.Since(began), most
}

func drain[T any](t *testing.T, list iter.Seq2[T, error], sample func()) (n int) {
	t.Helper()
	for _, err := range list {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n%250_000 == 0 {
			sample()
		}
	}
	sample()
	return n
}

func TestAMillionLocksAndWaitersDoNoHarm(t *testing.T) {
	pgtest.Long(t, "TestEveryListIsTheSameFromPagesOfAnySize")
	db := multitude(t)
	admin := newAdmin(t, db.Pool(t))
	// so each list may take longer than the library's ten seconds
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	// on a machine that does other things, too
	const aPage, aScan, everything = 500 * time.Millisecond, 30 * time.Second, 5 * time.Minute
	for _, tc := range []struct {
		name  string
		limit time.Duration
		want  int
		list  func(sample func()) int
	}{
		{"the first locks", aPage, 100, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Limit: 100}), s)
		}},
		{"locks from the middle", aPage, 100, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Limit: 100, After: "lock/0500000"}), s)
		}},
		{"locks with a prefix", aPage, 10, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Prefix: "lock/055555"}), s)
		}},
		{"the first waiters", aPage, 100, func(s func()) int {
			return drain(t, admin.Waiters(ctx, lockadmin.WaitersQuery{Limit: 100}), s)
		}},
		{"the head of the longest queue", aPage, 100, func(s func()) int {
			return drain(t, admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: "lock/0000500", Limit: 100}), s)
		}},
		{"waiters after the longest queue", aPage, 100, func(s func()) int {
			return drain(t, admin.Waiters(ctx, lockadmin.WaitersQuery{Limit: 100, After: "lock/0000500"}), s)
		}},
		{"the first fences", aPage, 100, func(s func()) int {
			return drain(t, admin.Fences(ctx, lockadmin.FencesQuery{Limit: 100}), s)
		}},
		{"fences of a lock", aPage, 100, func(s func()) int {
			return drain(t, admin.Fences(ctx, lockadmin.FencesQuery{Lock: "lock/0000077", Limit: 100}), s)
		}},
		{"locks that match", aScan, 1, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Match: "k/0999999"}), s)
		}},
		{"locks that match nothing", aScan, 0, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Match: "nothing"}), s)
		}},
		{"locks of a session", aScan, 100, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Holder: "holder 77"}), s)
		}},
		{"locks by age", aScan, 100, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Order: lockadmin.OrderAge, Limit: 100}), s)
		}},
		{"locks by waiting", aScan, 100, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Order: lockadmin.OrderWaiting, Limit: 100}), s)
		}},
		{"locks by expiry", aScan, 10_000, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{Order: lockadmin.OrderExpiry, Limit: 10_000}), s)
		}},
		{"waiters by age", aScan, 100, func(s func()) int {
			return drain(t, admin.Waiters(ctx, lockadmin.WaitersQuery{Order: lockadmin.OrderAge, Limit: 100}), s)
		}},
		{"waiters that match", aScan, 100, func(s func()) int {
			return drain(t, admin.Waiters(ctx, lockadmin.WaitersQuery{Holder: "waiter 77"}), s)
		}},
		{"fences by age", aScan, 100, func(s func()) int {
			return drain(t, admin.Fences(ctx, lockadmin.FencesQuery{Order: lockadmin.OrderAge, Limit: 100}), s)
		}},
		{"fences that match", aScan, 1, func(s func()) int {
			return drain(t, admin.Fences(ctx, lockadmin.FencesQuery{Match: "w/0999999"}), s)
		}},
		{"sessions", aScan, 100, func(s func()) int {
			return drain(t, admin.Sessions(ctx, lockadmin.SessionsQuery{Limit: 100}), s)
		}},
		{"sessions by leases", aScan, 100, func(s func()) int {
			return drain(t, admin.Sessions(ctx, lockadmin.SessionsQuery{Order: lockadmin.OrderLeases, Limit: 100}), s)
		}},
		{"all locks", everything, million, func(s func()) int {
			return drain(t, admin.Locks(ctx, lockadmin.LocksQuery{}), s)
		}},
		{"all waiters", everything, million, func(s func()) int {
			return drain(t, admin.Waiters(ctx, lockadmin.WaitersQuery{}), s)
		}},
		{"all fences", everything, million, func(s func()) int {
			return drain(t, admin.Fences(ctx, lockadmin.FencesQuery{}), s)
		}},
	} {
		n := 0
		took, heap := taken(t, func(sample func()) { n = tc.list(sample) })
		for range 2 { // the machine may have stood still
			if took > tc.limit {
				took, heap = taken(t, func(sample func()) { n = tc.list(sample) })
			}
		}
		t.Logf("%-32s %7d rows in %8s, heap %5.1f MB", tc.name, n, took.Round(time.Millisecond), float64(heap)/1e6)
		if n != tc.want || took > tc.limit || heap > 64<<20 {
			t.Errorf("%s: %d rows in %s with %d bytes of heap; want %d within %s and 64 MB", tc.name, n, took, heap,
				tc.want, tc.limit)
		}
	}
	if infos, err := admin.Holders(ctx, "lock/0000500"); err != nil || infos[0].Waiting != million/2+1 {
		t.Errorf("%+v, %v", infos, err)
	}
	var last lockadmin.Waiter
	for w, err := range admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: "lock/0000500"}) {
		if err != nil {
			t.Fatal(err)
		}
		last = w
	}
	if last.Place != million/2+1 {
		t.Errorf("the last place is %d", last.Place)
	}
}

// node is a part of a plan.
type node struct {
	Type  string  `json:"Node Type"`
	Index string  `json:"Index Name"`
	Rows  float64 `json:"Actual Rows"`
	Plans []node
}

func (n node) all() []node {
	found := []node{n}
	for _, p := range n.Plans {
		found = append(found, p.all()...)
	}
	return found
}

// The plan is that of the function's own statement, with its settings, from auto_explain.
func TestListsInOrderOfNamesWalkTheIndexWhateverTheServerKnows(t *testing.T) {
	pgtest.Long(t, "TestEveryListIsTheSameFromPagesOfAnySize")
	db := multitude(t)
	for _, known := range []bool{false, true} {
		if known {
			execute(t, db.Conn(t), "ANALYZE pglock.locks, pglock.waiters, pglock.fences, pglock.sessions")
		}
		for sql, index := range map[string]string{
			"list_locks('', false, 'lock/0400000', 100)":                              "locks_pkey",
			"list_locks('', true, '', 100)":                                           "locks_pkey",
			"list_locks('lock/04', false, '', 100, p_match => '7', p_older => '1 s')": "locks_pkey",
			"list_waiters('', 100)":                                                   "waiters_pkey",
			"list_waiters('lock/0000500', 100)":                                       "waiters_pkey",
			"list_waiters('', 100, 'lock/0000500', 900000, 400001)":                   "waiters_pkey",
			"list_fences('', 100, 'row/0400000')":                                     "fences_pkey",
			"list_fences('lock/0000077', 100)":                                        "fences_lock",
			"list_fences('', 100, 'row/0400000', 'row/04', '7', '1 s')":               "fences_pkey",
		} {
			plan := explained(t, db, sql)
			walked := false
			for _, n := range plan {
				walked = walked || n.Index == index && n.Rows > 0
				if n.Rows > 3000 || n.Type == "Seq Scan" && n.Rows > 0 {
					t.Errorf("analyzed %v: %s: %s %s reads %v rows", known, sql, n.Type, n.Index, n.Rows)
				}
			}
			if !walked {
				t.Errorf("analyzed %v: %s does not walk %s: %+v", known, sql, index, plan)
			}
		}
	}
}

// explained lists the parts of every plan that a call executes.
func explained(t *testing.T, db *pgtest.DB, call string) (all []node) {
	t.Helper()
	config := db.Pool(t).Config().ConnConfig
	var notices []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Message) }
	conn := must.Get(pgx.ConnectConfig(t.Context(), config))(t)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, sql := range []string{"LOAD 'auto_explain'", "SET auto_explain.log_min_duration = 0",
		"SET auto_explain.log_nested_statements = on", "SET auto_explain.log_analyze = on",
		"SET auto_explain.log_timing = off", "SET auto_explain.log_format = json",
		"SET auto_explain.log_level = notice"} {
		execute(t, conn, sql)
	}
	execute(t, conn, "SELECT count(*) FROM pglock."+call)
	for _, n := range notices {
		_, text, found := strings.Cut(n, "plan:\n")
		var plan struct{ Plan node }
		if !found || json.Unmarshal([]byte(text), &plan) != nil {
			continue
		}
		all = append(all, plan.Plan.all()...)
	}
	if len(all) < 3 {
		t.Fatalf("no plan in %q", notices)
	}
	return slices.DeleteFunc(all, func(n node) bool { return n.Rows == 0 && n.Index == "" })
}

// What a list leaves behind when nobody waits for it any more ends by itself.
func TestAListThatNobodyWaitsForEndsOnTheServer(t *testing.T) {
	pgtest.Long(t, "TestEveryCommandCanBeInterruptedWhileTheServerWorks")
	db := multitude(t)
	admin := newAdmin(t, db.Pool(t))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := lists.All(admin.Sessions(ctx, lockadmin.SessionsQuery{}))
	if err == nil {
		t.Fatal("a list of a million leases was made in 300 ms")
	}
	if errors.Is(err, pglock.ErrInvalid) {
		t.Error(err)
	}
	pgtest.Eventually(t, "the end of the statement", func() bool {
		var n int
		err := db.Conn(t).QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND "+
			"query LIKE '%list_sessions%' AND pid <> pg_backend_pid()").Scan(&n)
		return err == nil && n == 0
	})
}
