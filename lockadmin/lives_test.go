package lockadmin_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func TestLifeFollowsFromSignsAndTheConnection(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	ago := func(d time.Duration) *float64 { s := d.Seconds(); return &s }
	yes, no := true, false
	for name, c := range map[string]struct {
		signed, since *float64 // seconds ago
		counts        bool
		connected     *bool
		overIt        bool
		want          lockadmin.Life
	}{
		"a sign": {ago(14 * time.Second), ago(time.Hour), true, &yes, true,
			lockadmin.LifeAlive},
		"a sign, and no connection known": {ago(14 * time.Second), ago(time.Hour), true, nil, false,
			lockadmin.LifeAlive},
		"a sign over a connection that ended": {ago(time.Second), ago(time.Hour), true, &no, true,
			lockadmin.LifeUnknown},
		"a sign over another connection": {ago(time.Second), ago(time.Hour), true, &no, false,
			lockadmin.LifeAlive},
		"none, and connected": {ago(16 * time.Second), ago(time.Hour), true, &yes, true,
			lockadmin.LifeSilent},
		"none, and not connected": {ago(16 * time.Second), ago(time.Hour), true, &no, true,
			lockadmin.LifeDead},
		"none, and no connection known": {ago(16 * time.Second), ago(time.Hour), true, nil, false,
			lockadmin.LifeSilent},
		"none since it began to hold": {nil, ago(14 * time.Second), true, nil, false,
			lockadmin.LifeUnknown},
		"none for longer": {nil, ago(16 * time.Second), true, nil, false, lockadmin.LifeSilent},
		"its old connection ended, and it has begun to hold": {ago(time.Minute), ago(time.Second), true, &no, true,
			lockadmin.LifeUnknown},
		"its tickets count no more": {ago(2 * time.Second), ago(time.Minute), false, &yes, true,
			lockadmin.LifeSilent},
		"its tickets count no more, and not connected": {ago(2 * time.Second), ago(3 * time.Second), false, &no, true,
			lockadmin.LifeDead},
		"it holds nothing":                       {ago(16 * time.Second), nil, true, &yes, true, lockadmin.LifeIdle},
		"it holds nothing, and is not connected": {ago(16 * time.Second), nil, true, &no, true, lockadmin.LifeIdle},
		"it holds nothing, and gave a sign":      {ago(time.Second), nil, true, &yes, true, lockadmin.LifeAlive},
	} {
		var got lockadmin.Life
		err := conn.QueryRow(t.Context(), `SELECT pglock.life_of(clock_timestamp() - $1::float8 * interval '1 s',
			clock_timestamp() - $2::float8 * interval '1 s', $3, $4, $5)`, c.signed, c.since, c.counts, c.connected,
			c.overIt).Scan(&got)
		if err != nil || got != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}

// A short lease lacks a renewal long before the lists call its holder silent.
func TestWhyCallsNobodyStoppedBeforeTheListsDo(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'holder', '6 s')`)
	for ago, want := range map[string]string{"4 s": "late", "16 s": "silent"} {
		execute(t, conn, `UPDATE pglock.locks SET slowest = '2 s', acquired_at = clock_timestamp() - interval '1 min',
			renewed_at = clock_timestamp() - $1::text::interval, expires_at = clock_timestamp() + interval '1 min'`, ago)
		e, err := admin.Explain(t.Context(), "report")
		if err != nil || len(e.Holders) != 1 || e.Verdicts[0].Kind != want {
			t.Fatalf("%s without a renewal: %+v, %v; want %s", ago, e, err, want)
		}
		if silent := e.Holders[0].Life == lockadmin.LifeSilent; silent != (want == "silent") {
			t.Errorf("%s without a renewal: the lists say %s, why %s", ago, e.Holders[0].Life, want)
		}
	}
}

// Only a look makes tickets count for longer.
func TestASignOfLifeKeepsNoTicket(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	key := uuid.NewString()
	execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'holder', '1 h')`)
	execute(t, conn,
		`SELECT pglock.acquire_lease('report', gen_random_uuid(), $1::text::uuid, 'waiter', '1 h', p_wait => true, p_session_ttl => '100 ms')`, key)
	admin := newAdmin(t, db.Pool(t))
	pgtest.Eventually(t, "the ticket to count no more, whatever signs", func() bool {
		execute(t, conn, `SELECT pglock.mark_connection($1::text::uuid, pg_backend_pid(), 'waiter', 'v1.0.0', '1 h')`,
			key)
		waiters, err := lists.All(admin.Waiters(t.Context(), lockadmin.WaitersQuery{Lock: "report"}))
		if err != nil || len(waiters) != 1 {
			t.Fatal(waiters, err)
		}
		return !waiters[0].Alive
	})
	sessions, err := lists.All(admin.Sessions(t.Context(), lockadmin.SessionsQuery{Holder: "waiter"}))
	if err != nil || len(sessions) != 1 || sessions[0].Life != lockadmin.LifeSilent {
		t.Errorf("%+v, %v; want it silent: the queue passes over its ticket", sessions, err)
	}
}

// A session's TTL says how long its tickets count, not how often it is heard of.
func TestLooksAreNotedEveryFewSeconds(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	key := uuid.NewString()
	var writes int
	for _, c := range []struct {
		age  string
		want int
	}{{"4 s", 0}, {"6 s", 1}} {
		execute(t, conn, `SELECT pglock.look($1::text::uuid, 'waiter', '1 h')`, key)
		execute(t, conn, `UPDATE pglock.sessions SET seen_at = clock_timestamp() - $1::text::interval`, c.age)
		execute(t, conn, `SELECT pglock.look($1::text::uuid, 'waiter', '1 h')`, key)
		if err := conn.QueryRow(t.Context(),
			`SELECT count(*) FROM pglock.sessions WHERE seen_at > clock_timestamp() - interval '3 s'`).Scan(&writes); err != nil || writes != c.want {
			t.Errorf("%d, %v; want %d for a look %s after the last", writes, err, c.want, c.age)
		}
	}
}

// After a break the session's row is new. The next sign tells that, and the one after it marks the connection again.
func TestASignTellsWhetherTheConnectionIsMarked(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	key := uuid.NewString()
	sign := func(pid any) (marked bool) {
		t.Helper()
		if err := conn.QueryRow(t.Context(),
			`SELECT pglock.mark_connection($1::text::uuid, $2, 'holder', 'v1.0.0', '1 h')`, key,
			pid).Scan(&marked); err != nil {
			t.Fatal(err)
		}
		return marked
	}
	if !sign(conn.PgConn().PID()) || !sign(nil) {
		t.Error("a marked connection is not known")
	}
	execute(t, conn, "DELETE FROM pglock.sessions")
	if sign(nil) {
		t.Error("a connection is known after its session's row has gone")
	}
	if !sign(conn.PgConn().PID()) || !sign(nil) {
		t.Error("a connection is not marked again")
	}
}

// A connection holds one advisory lock as its mark, however often it is marked.
func TestAConnectionThatIsMarkedAgainKeepsOneMark(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, other := db.Conn(t), db.Conn(t)
	key := uuid.NewString()
	mark := func() (marked *bool) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `SELECT pglock.mark_connection($1::text::uuid, $2, 'holder', 'v1.0.0')`,
			key, conn.PgConn().PID()).Scan(&marked); err != nil {
			t.Fatal(err)
		}
		return marked
	}
	wantOne := func() {
		t.Helper()
		var n int
		if err := conn.QueryRow(t.Context(),
			`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d marks, %v; want one", n, err)
		}
	}
	for range 3 {
		if m := mark(); m == nil || !*m {
			t.Errorf("%v, want that it is marked", m)
		}
		wantOne()
	}
	tx := must.Get(other.Begin(t.Context()))(t)
	must.Get(tx.Exec(t.Context(), `UPDATE pglock.sessions SET version = 'v1.0.1'`))(t)
	if m := mark(); m != nil {
		t.Errorf("%v, want NULL while somebody has locked the row", *m)
	}
	wantOne()
	must.Do(t, tx.Rollback(t.Context()))
}

func TestLivesOfLeasesThatHaveEndedAreZero(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer client.Close(t.Context())
	var infos []pglock.LockInfo
	for _, name := range []string{"kept", "given back"} {
		lease := must.Get(client.TryAcquire(t.Context(), name))(t)
		info := must.Get(admin.Get(t.Context(), name))(t)
		infos = append(infos, info)
		if name == "given back" {
			must.Do(t, lease.Release(t.Context()))
		}
	}
	lives, err := admin.Lives(t.Context(), infos)
	if err != nil || len(lives) != 2 || lives[0].Life != lockadmin.LifeUnknown || lives[1] != (lockadmin.HolderLife{}) {
		t.Errorf("%+v, %v; want the first alone", lives, err)
	}
}
