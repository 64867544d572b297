package lockadmin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func TestSessionsTellWhatEachClientHoldsAndWaitsFor(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	holder := must.Get(pglock.New(t.Context(), pool, pglock.WithDefaultHolder("holder")))(t)
	defer holder.Close(context.WithoutCancel(t.Context()))
	for _, name := range []string{"a", "b"} {
		lease, err := holder.TryAcquire(t.Context(), name, pglock.WithTTL(time.Hour))
		if err == nil {
			_, err = lease.Extend(t.Context(), 2*time.Hour) // over the heartbeat's connection
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	waiter, err := pglock.New(t.Context(), pool, pglock.WithDefaultHolder("waiter"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _, _ = waiter.Acquire(ctx, "a") }()
	defer func() { cancel(); <-done; _ = waiter.Close(context.WithoutCancel(t.Context())) }()

	var all []lockadmin.Session
	// The process is seen as soon as the heartbeat's connection is marked, the version when that transaction has
	// committed.
	pgtest.Eventually(t, "two sessions with a heartbeat", func() bool {
		if all, err = lists.All(admin.Sessions(t.Context(), lockadmin.SessionsQuery{})); err != nil {
			t.Fatal(err)
		}
		marked := func(s lockadmin.Session) bool { return s.PID != 0 && s.Version != "" }
		return len(all) == 2 && marked(all[0]) && marked(all[1]) && all[1].Tickets == 1
	})
	for i, want := range []struct {
		holder          string
		leases, tickets int
	}{{"holder", 2, 0}, {"waiter", 0, 1}} {
		s := all[i]
		if s.Holder != want.holder || s.Leases != want.leases || s.Tickets != want.tickets ||
			s.Life != lockadmin.LifeAlive {
			t.Errorf("%+v, want %+v, alive", s, want)
		}
		if s.Version != "(devel)" || s.LastHeartbeat.IsZero() || s.Silent > 10*time.Second {
			t.Errorf("%+v, want a version and a heartbeat", s)
		}
		if s.User == "" || !strings.HasPrefix(s.Application, "pglock ") || s.State == "" {
			t.Errorf("%+v, want its process", s)
		}
	}
	info, err := admin.Get(t.Context(), "a")
	if err != nil || info.Session != all[0].ID {
		t.Errorf("%+v, %v; want session %s", info, err, all[0].ID)
	}
}

// It is what a release or an upgrade looks at: no heartbeat writes it again.
func TestVersionIsWrittenOnceForAConnection(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	execute(t, conn, `CREATE TABLE writes (n int); CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO public.writes VALUES (1); RETURN NULL; END $$;
		CREATE TRIGGER noted AFTER INSERT OR UPDATE ON pglock.sessions FOR EACH ROW EXECUTE FUNCTION noted()`)
	pool := db.Pool(t)
	_, lease := beating(t, pool, "report")
	admin := newAdmin(t, pool)
	var first lockadmin.Session
	pgtest.Eventually(t, "the version", func() bool {
		all, err := lists.All(admin.Sessions(t.Context(), lockadmin.SessionsQuery{}))
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		first = all[0]
		return first.Version != ""
	})
	for range 2 {
		must.Get(lease.Extend(t.Context(), 2*time.Hour))(t)
	}
	if info, err := admin.Get(t.Context(), "report"); err != nil || !info.RenewedAt.After(first.LastHeartbeat) {
		t.Fatalf("%+v, %v; want it renewed after %v", info, err, first.LastHeartbeat)
	}
	var writes int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM writes").Scan(&writes); err != nil || writes != 1 {
		t.Errorf("%d writes, %v; want one", writes, err)
	}
	must.Do(t, lease.Release(t.Context()))
}

func TestSweepKeepsTheSessionOfAnOpenHeartbeat(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	marked, gone := uuid.NewString(), uuid.NewString()
	execute(t, conn, `SELECT pglock.mark_connection($1::text::uuid, $2, 'marked', 'v1.0.0')`, marked,
		conn.PgConn().PID())
	execute(t, conn, `SELECT pglock.mark_connection($1::text::uuid, 0, 'gone', 'v1.0.0')`, gone) // behind a pooler
	execute(t, conn,
		`UPDATE pglock.sessions SET alive_until = clock_timestamp() - interval '2 min', seen_at = clock_timestamp() - interval '2 min'`)
	execute(t, conn, `SELECT pglock.sweep()`)
	var got string
	if err := conn.QueryRow(t.Context(),
		"SELECT string_agg(holder || ' ' || version, ', ') FROM pglock.sessions").Scan(&got); err != nil ||
		got != "marked v1.0.0" {
		t.Errorf("%q, %v; want the marked one alone", got, err)
	}
}

// A program that has ended without closing its client, and had let go of everything, is no client after a minute, also
// while its row stays because it had said that it holds something for longer.
func TestSessionsDoNotShowWhoHasEndedAndHoldsNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	for _, holder := range []string{"marked", "holds", "waits", "young", "ended"} {
		key, pid := uuid.NewString(), 0
		if holder == "marked" {
			pid = int(conn.PgConn().PID())
		}
		execute(t, conn, `SELECT pglock.mark_connection($1::text::uuid, $2, $3, 'v1.0.0', '10 h')`, key, pid, holder)
		if holder == "holds" || holder == "waits" {
			execute(t, conn,
				`SELECT pglock.acquire_lease('report', gen_random_uuid(), $1::text::uuid, $2, '1 h', p_wait => true, p_session_ttl => '1 h')`, key, holder)
		}
	}
	execute(t, conn, `UPDATE pglock.sessions SET seen_at = seen_at - interval '61 s' WHERE holder <> 'young'`)
	execute(t, conn, `UPDATE pglock.locks SET renewed_at = renewed_at - interval '61 s'`)
	execute(t, conn, `UPDATE pglock.waiters SET enqueued_at = enqueued_at - interval '61 s'`)
	execute(t, conn, `SELECT pglock.sweep()`)
	got := texts(t, newAdmin(t, db.Pool(t)).Sessions(t.Context(), lockadmin.SessionsQuery{}),
		func(s lockadmin.Session) string {
			return s.Holder
		})
	if fmt.Sprint(got) != "[holds marked waits young]" {
		t.Errorf("%q, want all but the one that has ended", got)
	}
}

func TestSessionsAreFilteredOrderedAndPaged(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	keys := map[string]string{}
	for n, c := range []struct {
		holder          string
		leases, tickets int
	}{{"ada", 1, 3}, {"bob", 3, 0}, {"bob", 2, 1}, {"cyd", 0, 2}} {
		key := uuid.NewString()
		id := fmt.Sprint(c.holder, n)
		for i := range c.leases {
			execute(t, conn, `SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, $3, '1 h')`,
				fmt.Sprint("l", n, i), key, c.holder)
		}
		for range c.tickets {
			execute(t, conn,
				`SELECT pglock.acquire_lease('l0 0', gen_random_uuid(), $1::text::uuid, $2, '1 h', p_wait => true, p_session_ttl => '1 h')`, key, c.holder)
		}
		execute(t, conn,
			`UPDATE pglock.locks SET renewed_at = clock_timestamp() - $2::int * interval '1 h' WHERE session_id = pglock.session_of($1::text::uuid)`, key, n)
		execute(t, conn,
			`UPDATE pglock.sessions SET seen_at = clock_timestamp() - $2::int * interval '1 h' WHERE session_id = pglock.session_of($1::text::uuid)`, key, n)
		execute(t, conn,
			`UPDATE pglock.waiters SET enqueued_at = clock_timestamp() - $2::int * interval '1 h' WHERE session_id = pglock.session_of($1::text::uuid)`, key, n)
		if err := conn.QueryRow(t.Context(), "SELECT pglock.session_of($1::text::uuid)::text",
			key).Scan(&key); err != nil {
			t.Fatal(err)
		}
		keys[id] = key
	}
	admin := newAdmin(t, db.Pool(t))
	list := func(q lockadmin.SessionsQuery) string {
		t.Helper()
		return strings.Join(texts(t, admin.Sessions(t.Context(), q), func(s lockadmin.Session) string {
			for id, key := range keys {
				if key == s.ID {
					return fmt.Sprint(id, ":", s.Leases, "+", s.Tickets)
				}
			}
			return "?" + s.ID
		}), " ")
	}
	one, two := "bob1:3+0", "bob2:2+1"
	if keys["bob2"] < keys["bob1"] {
		one, two = two, one
	}
	for name, tc := range map[string]struct {
		q    lockadmin.SessionsQuery
		want string
	}{
		"all": {lockadmin.SessionsQuery{}, "ada0:1+3 " + one + " " + two + " cyd3:0+2"},
		"one at a time": {lockadmin.SessionsQuery{PageSize: 1}, "ada0:1+3 " + one + " " + two +
			" cyd3:0+2"},
		"after":        {lockadmin.SessionsQuery{After: keys[one[:4]]}, two + " cyd3:0+2"},
		"a holder":     {lockadmin.SessionsQuery{Holder: "ada"}, "ada0:1+3"},
		"a part":       {lockadmin.SessionsQuery{Match: "o"}, one + " " + two},
		"a part of ID": {lockadmin.SessionsQuery{Match: keys["cyd3"][3:30]}, "cyd3:0+2"},
		"a session":    {lockadmin.SessionsQuery{Session: keys["bob2"]}, "bob2:2+1"},
		"older":        {lockadmin.SessionsQuery{Older: 150 * time.Minute}, "cyd3:0+2"},
		"by age": {lockadmin.SessionsQuery{Order: lockadmin.OrderAge},
			"cyd3:0+2 bob2:2+1 bob1:3+0 ada0:1+3"},
		"by leases": {lockadmin.SessionsQuery{Order: lockadmin.OrderLeases, Limit: 2},
			"bob1:3+0 bob2:2+1"},
		"by tickets": {lockadmin.SessionsQuery{Order: lockadmin.OrderWaiting, Limit: 2},
			"ada0:1+3 cyd3:0+2"},
	} {
		if got := list(tc.q); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// The next page begins behind the last client of this one, also if that has gone meanwhile. Who gives only the ID of
// one that has gone hears that, and not that there are no more.
func TestSessionsGoOnAfterOneThatHasGone(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	for _, who := range []string{"ada", "bob", "cyd"} {
		execute(t, conn, `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), $1, '1 h')`, who)
	}
	var got, ids []string
	for s, err := range admin.Sessions(t.Context(), lockadmin.SessionsQuery{PageSize: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if got, ids = append(got, s.Holder), append(ids, s.ID); s.Holder == "ada" { // it lets go between two pages
			execute(t, conn, `UPDATE pglock.locks SET expires_at = '-infinity', ended_at = now() WHERE name = 'ada'`)
		}
	}
	if strings.Join(got, " ") != "ada bob cyd" {
		t.Errorf("listed %q", got)
	}
	for i, want := range []error{pglock.ErrInvalid, nil, nil} {
		var err error
		n := 0
		for _, err = range admin.Sessions(t.Context(), lockadmin.SessionsQuery{After: ids[i]}) {
			n++
		}
		if !errors.Is(err, want) || err == nil && n != 2-i {
			t.Errorf("after %s: %d clients, %v; want %v", got[i], n, err, want)
		}
	}
	for size := range 2 {
		q := lockadmin.SessionsQuery{After: ids[0], AfterHolder: "ada", PageSize: size + 1}
		if all, err := lists.All(admin.Sessions(t.Context(), q)); err != nil || len(all) != 2 ||
			all[0].Holder != "bob" {
			t.Errorf("after ada, who has gone, %d at a time: %+v, %v; want bob and cyd", size+1, all, err)
		}
	}
}
