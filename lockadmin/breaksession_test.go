package lockadmin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func TestBreakSessionEndsEveryLeaseAndTicketOfADeadClient(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	dead, other := uuid.NewString(), uuid.NewString()
	acquire := func(key, name, mode, holder string, wait bool) {
		t.Helper()
		execute(t, conn,
			`SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, $3, '1 h', p_mode => $4, p_wait => $5, p_session_ttl => '1 h')`, name, key, holder, mode, wait)
	}
	acquire(dead, "a", "exclusive", "dead", false)
	acquire(dead, "readers", "shared", "dead", false)
	acquire(dead, "readers", "shared", "dead", false)
	acquire(other, "readers", "shared", "other", false)
	acquire(other, "b", "exclusive", "other", false)
	acquire(dead, "b", "exclusive", "dead", true)
	acquire(other, "a", "exclusive", "next of a", true)
	acquire(other, "b", "exclusive", "next of b", true)
	id := pgtest.One[string](t, conn, "SELECT pglock.session_of($1::text::uuid)::text", dead)
	broken := must.Get(admin.BreakSession(t.Context(), strings.ToUpper(id), "its host is gone",
		lockadmin.BreakOptions{Actor: "ada"}))(t)
	var got []string
	for _, b := range broken {
		if b.Holder != "dead" || (b.Ticket == 0) != (b.NewToken > b.Token && b.Token > 0) {
			t.Errorf("%+v", b)
		}
		got = append(got, fmt.Sprint(b.Name, "#", b.Slot, " ", b.Ticket > 0))
	}
	if want := "a#0 false, b#0 true, readers#1 false, readers#2 false"; strings.Join(got, ", ") != want {
		t.Errorf("broke %q, want %q", got, want)
	}
	held := texts(t, admin.Locks(t.Context(), lockadmin.LocksQuery{}), func(l pglock.LockInfo) string {
		return fmt.Sprint(l.Name, "#", l.Slot, " ", l.Holder)
	})
	if want := "a#0 next of a, b#0 other, readers#3 other"; strings.Join(held, ", ") != want {
		t.Errorf("held now: %q, want %q", held, want)
	}
	if queue := texts(t, admin.Waiters(t.Context(), lockadmin.WaitersQuery{}), func(w lockadmin.Waiter) string {
		return w.Holder
	}); fmt.Sprint(queue) != "[next of b]" {
		t.Errorf("the queue has %q", queue)
	}
	if left := texts(t, admin.Sessions(t.Context(), lockadmin.SessionsQuery{}), func(s lockadmin.Session) string {
		return s.Holder
	}); len(left) != 1 {
		t.Errorf("sessions left: %q", left)
	}
	history := texts(t, admin.History(t.Context(), lockadmin.HistoryQuery{}), func(e lockadmin.HistoryEntry) string {
		return fmt.Sprint(e.Lock, " ", e.Kind, " ", e.Actor, " ", e.Reason)
	})
	if len(history) != 3 || history[0] != "readers break ada its host is gone" {
		t.Errorf("the history has %q", history)
	}
	if _, err := admin.BreakSession(t.Context(), id, "once more", lockadmin.BreakOptions{}); !errors.Is(err,
		lockadmin.ErrNotHeld) {
		t.Errorf("%v, want ErrNotHeld", err)
	}
}

// What a break has handed to very many is announced in calls that the server takes.
func TestBreakSessionAnnouncesManyGrantsInSeveralCalls(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	dead, waiter := uuid.NewString(), uuid.NewString()
	execute(t, conn, `SELECT pglock.acquire_lease('x' || n, gen_random_uuid(), $1::text::uuid, 'dead', '1 h')
		FROM generate_series(1, 12) n`, dead)
	execute(t, conn, `INSERT INTO pglock.sessions VALUES ($1::text::uuid, 'many', clock_timestamp() + interval '1 h')`, waiter)
	execute(t, conn, `INSERT INTO pglock.waiters (name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
		SELECT 'x' || 1 + n % 12, nextval('pglock.ticket_seq'), 'shared', gen_random_uuid(), $1::text::uuid, false, 'many', '1 h', clock_timestamp()
		FROM generate_series(1, 12000) n`, waiter)
	execute(t, conn, `LISTEN pglock_`+strings.ReplaceAll(waiter, "-", ""))
	id := pgtest.One[string](t, conn, "SELECT pglock.session_of($1::text::uuid)::text", dead)
	must.Get(newAdmin(t, db.Pool(t)).BreakSession(t.Context(), id, "its host is gone", lockadmin.BreakOptions{}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := conn.WaitForNotification(ctx); err != nil {
		granted := pgtest.One[int](t, conn, "SELECT count(*)::int FROM pglock.locks WHERE slot > 0")
		t.Errorf("nobody was told of %d grants: %v", granted, err)
	}
}

func TestBreakSessionServesTheQueueOfAFreeLock(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	dead := uuid.NewString()
	for n, key := range []string{uuid.NewString(), dead, uuid.NewString()} {
		execute(t, conn,
			`SELECT pglock.acquire_lease('a', gen_random_uuid(), $1::text::uuid, $2, '1 h', p_wait => true, p_session_ttl => '1 h')`, key, fmt.Sprint("h", n))
	}
	// and the first waiter does not ask
	execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 s'`)
	must.Get(admin.BreakSession(t.Context(), idOf(t, db, dead), "gone", lockadmin.BreakOptions{}))(t)
	if info, err := admin.Get(t.Context(), "a"); err != nil || !info.Held || info.Holder != "h2" {
		t.Errorf("%+v, %v; want the next waiter", info, err)
	}
}

func idOf(t *testing.T, db *pgtest.DB, key string) (id string) {
	t.Helper()
	if err := db.Conn(t).QueryRow(t.Context(), "SELECT pglock.session_of($1::text::uuid)::text",
		key).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestBreakSessionOfALiveClientTellsItAndLetsItsCallsQueueAgain(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	_, blocker := hold(t, pool, "busy", pglock.WithTTL(time.Minute))
	alive, lease := hold(t, pool, "mine")
	got := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		l, err := alive.Acquire(ctx, "busy")
		if err == nil {
			err = l.Release(ctx)
		}
		got <- err
	}()
	pgtest.Eventually(t, "a waiter", func() bool {
		all, err := lists.All(admin.Waiters(t.Context(), lockadmin.WaitersQuery{Lock: "busy"}))
		return err == nil && len(all) == 1
	})
	info := must.Get(admin.Get(t.Context(), "mine"))(t)
	if broken, err := admin.BreakSession(t.Context(), info.Session, "by mistake",
		lockadmin.BreakOptions{}); err != nil || len(broken) != 2 {
		t.Fatal(broken, err)
	}
	pgtest.Eventually(t, "the loss", func() bool { return errors.Is(lease.Err(), pglock.ErrLost) })
	must.Do(t, blocker.Release(t.Context()))
	if err := <-got; err != nil {
		t.Errorf("the waiting call: %v, want the lock", err)
	}
}

func TestBreakSessionDoesAllOrNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	key := uuid.NewString()
	for _, name := range []string{"a", "b", "c"} {
		execute(t, conn, `SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, 'h', '1 h')`, name, key)
	}
	tx := must.Get(conn.Begin(t.Context()))(t)
	must.Get(tx.Exec(t.Context(), "SELECT FROM pglock.locks WHERE name = 'c' FOR UPDATE"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	id, done := idOf(t, db, key), make(chan struct{})
	pgtest.Group(t).Go(func() {
		defer close(done)
		if broken, err := admin.BreakSession(ctx, id, "stuck", lockadmin.BreakOptions{}); err == nil ||
			len(broken) != 0 {
			t.Errorf("%v, %v; want an error", broken, err)
		}
	})
	pgtest.Eventually(t, "the wait for the row", func() bool { return blocked(t, pool) })
	cancel()
	<-done
	// What its caller has left would go on when the row is free.
	pgtest.Eventually(t, "the end of the statement", func() bool { return !blocked(t, pool) })
	must.Do(t, tx.Rollback(t.Context()))
	if held := texts(t, admin.Locks(t.Context(), lockadmin.LocksQuery{}), func(l pglock.LockInfo) string {
		return l.Name
	}); len(held) != 3 {
		t.Errorf("%q are held, want all", held)
	}
}

// blocked says that somebody waits for a lock of the database.
func blocked(t *testing.T, pool *pgxpool.Pool) bool {
	t.Helper()
	var waiting int
	// Not wait_event_type: a signal, as of any DROP DATABASE, wakes a waiter, which for that moment shows no event.
	must.Do(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0`).Scan(&waiting))
	return waiting > 0
}

// A lease may run out while its break waits for its row, as for a COMMIT of its holder. Then there is nothing to break
// of it, and what else the session has is broken all the same.
func TestBreakSessionPassesOverALeaseThatEndsMeanwhile(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	key := uuid.NewString()
	for name, mode := range map[string]string{"a": "shared", "b": "exclusive"} {
		execute(t, conn, `SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, 'h', '1 h', p_mode => $3)`,
			name, key, mode)
	}
	tx := must.Get(conn.Begin(t.Context()))(t)
	if _, err := tx.Exec(t.Context(), `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 ms'
		WHERE name = 'a' AND slot = 1`); err != nil {
		t.Fatal(err)
	}
	id := idOf(t, db, key)
	var broken []lockadmin.Broken
	ended := make(chan error, 1)
	pgtest.Group(t).Go(func() {
		var err error
		broken, err = admin.BreakSession(t.Context(), id, "gone", lockadmin.BreakOptions{})
		ended <- err
	})
	pgtest.Eventually(t, "the wait for the row", func() bool { return blocked(t, pool) })
	must.Do(t, tx.Commit(t.Context()))
	if err := <-ended; err != nil || len(broken) != 1 || broken[0].Name != "b" {
		t.Errorf("%+v, %v; want a break of b alone", broken, err)
	}
}

func TestBreakSessionRefusesBadArguments(t *testing.T) {
	t.Parallel()
	admin := newAdmin(t, pgtest.Database(t).Pool(t))
	for says, call := range map[string]func() ([]lockadmin.Broken, error){
		`session is "x"`: func() ([]lockadmin.Broken, error) {
			return admin.BreakSession(t.Context(), "x", "why", lockadmin.BreakOptions{})
		},
		`reason is empty`: func() ([]lockadmin.Broken, error) {
			return admin.BreakSession(t.Context(), uuid.NewString(), "", lockadmin.BreakOptions{})
		},
		`not all blank`: func() ([]lockadmin.Broken, error) {
			return admin.BreakSession(t.Context(), uuid.NewString(), " ", lockadmin.BreakOptions{})
		},
		`token is given`: func() ([]lockadmin.Broken, error) {
			return admin.BreakSession(t.Context(), uuid.NewString(), "why",
				lockadmin.BreakOptions{Token: new(pglock.Token(1))})
		},
		`actor is "\x00"`: func() ([]lockadmin.Broken, error) {
			return admin.BreakSession(t.Context(), uuid.NewString(), "why", lockadmin.BreakOptions{Actor: "\x00"})
		},
	} {
		if _, err := call(); !errors.Is(err, pglock.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// A lease that ends while the first thousand are broken does not make the rest be taken for done.
func TestBreakSessionGoesOnAfterALeaseThatEndsMeanwhile(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, pool := db.Conn(t), db.Pool(t)
	admin, key := newAdmin(t, pool), uuid.NewString()
	execute(t, conn, `SELECT pglock.acquire_lease('l' || to_char(n, 'FM0000'), gen_random_uuid(), $1::text::uuid, 'h', '1 h')
		FROM generate_series(1, 1005) n`, key)
	id := idOf(t, db, key)
	execute(t, conn, "BEGIN")
	execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 ms' WHERE name = 'l0001'`)
	ended := make(chan error, 1)
	pgtest.Group(t).Go(func() {
		_, err := admin.BreakSession(t.Context(), id, "gone", lockadmin.BreakOptions{})
		ended <- err
	})
	pgtest.Eventually(t, "the wait for the row", func() bool { return blocked(t, pool) })
	execute(t, conn, "COMMIT")
	must.Do(t, <-ended)
	if left := texts(t, admin.Locks(t.Context(), lockadmin.LocksQuery{}),
		func(l pglock.LockInfo) string { return l.Name }); len(left) != 0 {
		t.Errorf("%q are still held, and there was no error", left)
	}
}
