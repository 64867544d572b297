package lockadmin_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// login makes a role with the rights of pglock_user, and tells how it connects.
func login(t *testing.T, db *pgtest.DB, name string) (role, connect string) {
	t.Helper()
	owner := db.Conn(t)
	role = pgx.Identifier{db.Name() + name}.Sanitize()
	execute(t, owner, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret' IN ROLE pglock_user")
	t.Cleanup(func() {
		_, err := owner.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		if err != nil {
			t.Error(err)
		}
	})
	address := must.Get(url.Parse(db.URL()))(t)
	address.User = url.UserPassword(db.Name()+name, "secret")
	return role, address.String()
}

// pg_terminate_backend itself is asked whether the right that is told is the right that it needs.
func TestMayEndIsTheRightThatTheServerAsksFor(t *testing.T) {
	db := pgtest.Parallel(t)
	owner := db.Conn(t)
	_, holderURL := login(t, db, "_holder")
	role, adminURL := login(t, db, "_admin")
	holder := must.Get(pglock.Open(t.Context(), holderURL))(t)
	defer holder.Close(t.Context())
	lease, err := holder.TryAcquire(t.Context(), "report", pglock.WithTTL(time.Hour))
	if err == nil {
		_, err = lease.Extend(t.Context(), 2*time.Hour) // over the heartbeat's connection
	}
	if err != nil {
		t.Fatal(err)
	}
	pool := must.Get(pgxpool.New(t.Context(), adminURL))(t)
	defer pool.Close()
	admin := newAdmin(t, pool)
	for _, granted := range []bool{false, true} {
		if granted {
			execute(t, owner, "GRANT pg_signal_backend TO "+role)
		}
		b := backends(t, admin, "report", 1)[0]
		_, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend($1)", b.PID)
		if b.MayEnd != granted || (err == nil) != granted {
			t.Errorf("may end: %v, and the server answers %v; want %v", b.MayEnd, err, granted)
		}
	}
}

// The same of the advice to end whoever wants to lock a whole table, and those in the way.
func TestExplainSaysWhatRightItTakesToEndWhoeverKeepsATable(t *testing.T) {
	db := pgtest.Parallel(t)
	owner := db.Conn(t)
	locker, lockerURL := login(t, db, "_locker")
	role, adminURL := login(t, db, "_admin")
	execute(t, owner, "GRANT UPDATE ON pglock.locks TO "+locker)
	pool := must.Get(pgxpool.New(t.Context(), adminURL))(t)
	defer pool.Close()
	admin, all := newAdmin(t, pool), newAdmin(t, db.Pool(t))
	connect := func() *pgx.Conn {
		t.Helper()
		conn := must.Get(pgx.Connect(t.Context(), lockerURL))(t)
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // the server may have ended it
		execute(t, conn, "BEGIN")
		return conn
	}
	reads := connect()
	execute(t, reads, "LOCK TABLE pglock.locks IN ROW SHARE MODE")
	wants := connect()
	behind(t, db, wants, "LOCK TABLE pglock.locks")
	steps := func(a *lockadmin.Admin) []lockadmin.Step {
		t.Helper()
		v := must.Get(a.Explain(t.Context(), "report"))(t).Verdicts[0]
		if v.Kind != "table" || len(v.Steps) != 2 {
			t.Fatalf("%s: %+v", v.Text, v.Steps)
		}
		return v.Steps
	}
	locked := "a member of the role " + db.Name() + "_locker or of pg_signal_backend (a superuser, if that role is one)"
	for _, s := range steps(admin) {
		if _, err := pool.Exec(t.Context(), s.Command); s.Needs != locked || err == nil {
			t.Errorf("%s needs %q, and the server answers %v; want %q", s.Command, s.Needs, err, locked)
		}
	}
	for _, s := range steps(all) {
		if s.Needs != "" {
			t.Errorf("a superuser needs %q for %s", s.Needs, s.Command)
		}
	}
	execute(t, owner, "GRANT pg_signal_backend TO "+role)
	for _, s := range steps(admin) {
		if _, err := pool.Exec(t.Context(), s.Command); s.Needs != "" || err != nil {
			t.Errorf("%s needs %q, and the server answers %v", s.Command, s.Needs, err)
		}
	}
}

// Where the server hides a transaction's age, it still tells everybody since when that waits for a table.
func TestWhoeverMayNotSeeATransactionHearsSinceWhenItWaitsForATable(t *testing.T) {
	db := pgtest.Parallel(t)
	_, adminURL := login(t, db, "_admin")
	pool := must.Get(pgxpool.New(t.Context(), adminURL))(t)
	defer pool.Close()
	admin := newAdmin(t, pool)
	holds, _ := openly(t, db, "LOCK TABLE pglock.locks IN ACCESS SHARE MODE")
	wants, pid := openly(t, db)
	behind(t, db, wants, "LOCK TABLE pglock.locks")
	look := db.Conn(t)
	var began time.Time
	pgtest.Eventually(t, "the wait to be older than what the clocks may differ by", func() bool {
		err := look.QueryRow(t.Context(), "SELECT waitstart FROM pg_locks WHERE pid = $1 AND "+
			"waitstart < clock_timestamp() - interval '6 s'", pid).Scan(&began)
		return err == nil
	})
	e := must.Get(admin.Explain(t.Context(), "report"))(t)
	all := must.Get(admin.Overview(t.Context(), 20))(t)
	if len(all.Locks) != 1 || all.Locks[0].Kind != "table" {
		t.Fatalf("%+v", all)
	}
	for what, since := range map[string]time.Time{"Explain": e.Verdicts[0].Since, "Overview": all.Locks[0].Since} {
		if since.Sub(began).Abs() > 5*time.Second { // the server reads its clock twice
			t.Errorf("%s says since %v, want %v", what, since, began)
		}
	}
	for what, unseen := range map[string][]string{"Explain": e.Unseen, "Overview": all.Unseen} {
		if len(unseen) != 1 || !strings.Contains(unseen[0], "pg_read_all_stats") {
			t.Errorf("%s has not seen %q, want other users' connections", what, unseen)
		}
	}

	execute(t, holds, "COMMIT") // so that nothing waits any more
	pgtest.Eventually(t, "the table is locked", func() bool {
		var granted bool
		err := look.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND granted
			AND mode = 'AccessExclusiveLock')`, pid).Scan(&granted)
		return err == nil && granted
	})
	all = must.Get(admin.Overview(t.Context(), 20))(t)
	if len(all.Locks) != 1 || all.Locks[0].Kind != "table" || !all.Locks[0].Since.IsZero() || len(all.Unseen) != 1 {
		t.Errorf("%+v; want that nobody knows since when the table is locked", all)
	}
}
