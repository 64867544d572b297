package lockadmin_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// hold acquires a lock whose heartbeat runs soon, with a client of its own.
func hold(t *testing.T, pool *pgxpool.Pool, name string, opts ...pglock.AcquireOption) (*pglock.Client, *pglock.Lease) {
	t.Helper()
	c := must.Get(pglock.New(t.Context(), pool))(t)
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	l := must.Get(c.TryAcquire(t.Context(), name, append([]pglock.AcquireOption{pglock.WithTTL(6 * time.Second)},
		opts...)...))(t)
	return c, l
}

// beating is hold with a lease of an hour that was renewed once. The next renewal is far away.
func beating(
	t *testing.T, pool *pgxpool.Pool, name string, opts ...pglock.AcquireOption,
) (*pglock.Client, *pglock.Lease) {
	t.Helper()
	c, l := hold(t, pool, name, append([]pglock.AcquireOption{pglock.WithTTL(time.Hour)}, opts...)...)
	must.Get(l.Extend(t.Context(), 2*time.Hour))(t)
	return c, l
}

// resting waits until so many backends work for a lock, and none of them has had anything to do for a moment.
func resting(t *testing.T, admin *lockadmin.Admin, name string, n int) []lockadmin.Backend {
	t.Helper()
	var all []lockadmin.Backend
	pgtest.Eventually(t, fmt.Sprintf("%d idle backends of %s", n, name), func() bool {
		all = backends(t, admin, name, n)
		return !slices.ContainsFunc(all, func(b lockadmin.Backend) bool {
			return b.State != "idle" || b.InState < 200*time.Millisecond
		})
	})
	return all
}

// backends waits until so many backends work for a lock.
func backends(t *testing.T, admin *lockadmin.Admin, name string, n int) []lockadmin.Backend {
	t.Helper()
	var all []lockadmin.Backend
	pgtest.Eventually(t, fmt.Sprintf("%d backends of %s", n, name), func() bool {
		var err error
		if all, err = admin.Backends(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		return len(all) == n
	})
	return all
}

func TestBackendsTellTheHeartbeatOfEachHolderWhileItLives(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	one, first := beating(t, pool, "readers", pglock.WithShared(), pglock.WithHolder("one"))
	_, second := beating(t, pool, "readers", pglock.WithShared(), pglock.WithHolder("two"))
	_, other := beating(t, pool, "other")
	all := resting(t, admin, "readers", 2)
	for i, lease := range []*pglock.Lease{first, second} {
		b := all[i]
		if b.Use != lockadmin.BackendHeartbeat || b.Slot != lease.Slot() || b.Token != lease.Token() ||
			b.Holder != lease.Holder() || b.Resource != "" {
			t.Errorf("%+v, want the heartbeat of %v", b, lease)
		}
		if b.Hidden || !b.MayEnd || b.State != "idle" || b.User == "" || b.StartedAt.IsZero() || b.Transaction != 0 ||
			b.InState > time.Minute {
			t.Errorf("%+v, want what a superuser may see", b)
		}
		if !strings.HasPrefix(b.Application, "pglock ") || !strings.Contains(b.Application, "/lockadmin.test[") {
			t.Errorf("the backend has the name %q", b.Application)
		}
		var query string
		if err := pool.QueryRow(t.Context(), "SELECT query FROM pg_stat_activity WHERE pid = $1",
			b.PID).Scan(&query); err != nil ||
			!slices.ContainsFunc([]string{"mark_connection", "renew_leases", "sweep"}, func(s string) bool {
				return strings.Contains(query, s)
			}) {
			t.Errorf("process %d does %q, %v; want a heartbeat", b.PID, query, err)
		}
	}
	if all[0].PID == all[1].PID || backends(t, admin, "other", 1)[0].Token != other.Token() {
		t.Errorf("%+v: two clients have one heartbeat", all)
	}
	must.Do(t, one.Close(t.Context()))
	if left := backends(t, admin, "readers", 1); left[0].PID != all[1].PID {
		t.Errorf("%+v, want the other holder's alone", left)
	}
}

// It is what people are told: to end the process ends no lease.
func TestClientWhoseHeartbeatIsTerminatedRenewsOverANewConnection(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	_, lease := hold(t, pool, "report")
	before := backends(t, admin, "report", 1)[0]
	execute(t, db.Conn(t), "SELECT pg_terminate_backend($1)", before.PID)
	pgtest.Eventually(t, "another backend", func() bool {
		all, err := admin.Backends(t.Context(), "report")
		return err == nil && len(all) == 1 && all[0].PID != before.PID
	})
	if _, err := lease.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestBackendsKeepTheNameOfTheApplication(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "shop" })
	beating(t, pool, "report")
	if b := backends(t, newAdmin(t, pool), "report", 1)[0]; b.Application != "shop" {
		t.Errorf("%+v, want the application's own name", b)
	}
}

func TestBackendsTellOpenFencedTransactions(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	_, lease := hold(t, pool, "account", pglock.WithTTL(time.Minute)) // its heartbeat does not run yet
	for _, resource := range []string{"account", "elsewhere"} {
		for _, savepoint := range []bool{false, true} {
			t.Run(fmt.Sprint(resource, " ", savepoint), func(t *testing.T) {
				guard := func(tx pgx.Tx) {
					t.Helper()
					fence := fencedstore.Fence{Lease: lease, Resource: resource, SameToken: true}
					must.Get(fencedstore.Guard(t.Context(), tx, fence))(t)
				}
				if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					guard(tx)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				backends(t, admin, "account", 0)
				conn := db.Conn(t)
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if inner := tx; savepoint {
					if inner, err = tx.Begin(t.Context()); err != nil {
						t.Fatal(err)
					}
					guard(inner)
				} else {
					guard(inner)
				}
				b := backends(t, admin, "account", 1)[0]
				if b.Use != lockadmin.BackendWrite || b.PID != int(conn.PgConn().PID()) || b.Resource != resource ||
					b.State != "idle in transaction" ||
					b.Transaction <= 0 || b.Transaction > time.Minute || b.Slot != 0 || b.Token != 0 {
					t.Errorf("%+v, want the transaction of process %d", b, conn.PgConn().PID())
				}
				must.Do(t, tx.Rollback(t.Context()))
				backends(t, admin, "account", 0)
			})
		}
	}
}

// passing is a transaction that passes a fence, or waits there.
func passing(
	t *testing.T, db *pgtest.DB, lease *pglock.Lease, resource string,
) (tx pgx.Tx, pid int, passed chan error) {
	t.Helper()
	conn := db.Conn(t)
	tx = must.Get(conn.Begin(t.Context()))(t)
	passed = make(chan error, 1)
	go func() {
		fence := fencedstore.Fence{Lease: lease, Resource: resource, SameToken: true}
		_, err := fencedstore.Guard(t.Context(), tx, fence)
		passed <- err
	}()
	return tx, int(conn.PgConn().PID()), passed
}

// Nobody sees the row of a fence that nobody has passed before. The transaction that does is found, and so is who waits
// for it there, but not who passes another lock's first fence, nor who waits for it elsewhere.
func TestBackendsTellTheFirstPassageOfAFence(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	execute(t, db.Conn(t), "CREATE TABLE accounts (id int PRIMARY KEY)")
	_, lease := hold(t, pool, "account", pglock.WithTTL(time.Minute))
	_, other := hold(t, pool, "other", pglock.WithTTL(time.Minute))
	_, slot := hold(t, pool, "places", pglock.WithTTL(time.Minute), pglock.WithLimit(2))
	uses := func(name string) (all []string) {
		t.Helper()
		found := must.Get(admin.Backends(t.Context(), name))(t)
		for _, b := range found {
			all = append(all, fmt.Sprint(b.PID, " ", b.Use, " ", b.Resource))
		}
		return all
	}
	for _, c := range []struct {
		lease          *pglock.Lease
		resource, told string
	}{{lease, "account", "account"}, {slot, "places#1", "places#1"}, {lease, "elsewhere", ""}} {
		name, resource := c.lease.Name(), c.resource
		first, firstPID, passed := passing(t, db, c.lease, resource)
		must.Do(t, <-passed)
		beside, besidePID, passed := passing(t, db, other, "other "+resource)
		must.Do(t, <-passed)
		must.Get(first.Exec(t.Context(), "INSERT INTO accounts VALUES (1)"))(t)
		waits := must.Go(func() error {
			_, err := beside.Exec(t.Context(), "INSERT INTO accounts VALUES (1)")
			return err
		})
		second, secondPID, passed := passing(t, db, c.lease, resource)
		want := []string{fmt.Sprintf("%d write %s", firstPID, c.told), fmt.Sprintf("%d at fence %s", secondPID, c.told)}
		pgtest.Eventually(t, "two waits for the first passage of "+resource, func() bool {
			return slices.Equal(uses(name), want) && len(uses(other.Name())) == 2
		})
		want = []string{fmt.Sprintf("%d write ", besidePID), fmt.Sprintf("%d blocker ", firstPID)}
		if got := uses(other.Name()); !slices.Equal(got, want) {
			t.Errorf("the other lock: %q, want %q", got, want)
		}
		if resource != name {
			if got := uses(resource); len(got) != 2 || got[0] != fmt.Sprintf("%d write %s", firstPID, resource) {
				t.Errorf("the lock with the name of the resource: %q", got)
			}
		}
		for _, tx := range []pgx.Tx{first, beside, second} {
			if tx == beside {
				<-waits
			}
			if tx == second {
				<-passed
			}
			must.Do(t, tx.Rollback(t.Context()))
		}
		backends(t, admin, name, 0)
	}
}

// The server has room for some thousands of marks in all.
// An application that locks the same numbers as the mark of a first passage, by itself, passes no fence by that.
func TestAnApplicationsAdvisoryLockIsNoPassage(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	hold(t, pool, "nightly", pglock.WithTTL(time.Minute))
	_, other := hold(t, pool, "other", pglock.WithTTL(time.Minute))
	tx, pid, passed := passing(t, db, other, "other")
	must.Do(t, <-passed)
	must.Get(tx.Exec(t.Context(), "SELECT pg_advisory_lock(7, hashtext('nightly'))"))(t)
	for name, want := range map[string]bool{"nightly": false, "other": true} {
		all := must.Get(admin.Backends(t.Context(), name))(t)
		found := slices.ContainsFunc(all, func(b lockadmin.Backend) bool { return b.PID == pid })
		if found != want {
			t.Errorf("%s: %+v; found %v, want %v", name, all, found, want)
		}
	}
	must.Do(t, tx.Rollback(t.Context()))
}

func TestTransactionThatPassesManyFencesForTheFirstTimeMarksFew(t *testing.T) {
	db := pgtest.Parallel(t)
	_, lease := hold(t, db.Pool(t), "account", pglock.WithTTL(time.Minute))
	conn := db.Conn(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // the test is over
	for n := range 20 {
		row := fencedstore.Fence{Lease: lease, Resource: fmt.Sprint("row ", n)}
		must.Get(fencedstore.Guard(t.Context(), tx, row))(t)
	}
	var locks int
	err = tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND pid = pg_backend_pid()`).Scan(&locks)
	if err != nil || locks != 8 {
		t.Errorf("%d marks, %v; want 8", locks, err)
	}
}

func TestBackendsSayWhatTheServerHidesAndWhoMayEndThem(t *testing.T) {
	db := pgtest.Parallel(t)
	owner := db.Conn(t)
	beating(t, db.Pool(t), "report")
	all := resting(t, newAdmin(t, db.Pool(t)), "report", 1)
	user := pgx.Identifier{db.Name() + "_user"}.Sanitize()
	execute(t, owner, "CREATE ROLE "+user+" LOGIN PASSWORD 'secret' IN ROLE pglock_user")
	t.Cleanup(func() {
		_, err := owner.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+user)
		if err != nil {
			t.Error(err)
		}
	})
	address := must.Get(url.Parse(db.URL()))(t)
	address.User = url.UserPassword(db.Name()+"_user", "secret")
	pool := must.Get(pgxpool.New(t.Context(), address.String()))(t)
	defer pool.Close()
	admin := newAdmin(t, pool)
	sees := func(hidden bool) {
		t.Helper()
		b := backends(t, admin, "report", 1)[0]
		want := lockadmin.Backend{Use: lockadmin.BackendHeartbeat, Token: all[0].Token, Holder: all[0].Holder,
			PID:  all[0].PID,
			User: all[0].User, Application: all[0].Application, Hidden: true}
		if hidden && !reflect.DeepEqual(b, want) {
			t.Errorf("%+v, want %+v", b, want)
		}
		if !hidden && (b.Hidden || b.State != "idle" || b.StartedAt != all[0].StartedAt || b.MayEnd) {
			t.Errorf("%+v, want what members of pg_read_all_stats may see, and no right to end it", b)
		}
	}
	sees(true)
	execute(t, owner, "GRANT pg_signal_backend TO "+user)
	sees(true) // it is a superuser's
	execute(t, owner, "GRANT pg_read_all_stats TO "+user)
	sees(false)
	execute(t, owner, "REVOKE pglock_user FROM "+user)
	if _, err := admin.Backends(t.Context(), "report"); !errors.Is(err, pglock.ErrPermission) {
		t.Errorf("%v, want ErrPermission", err)
	}
}

// Where track_activities is off, the server shows nobody what a process does, nor since when.
func TestWhoHidesWhatTheyDoIsSuspectedAndNamed(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	hold(t, db.Pool(t), "report", pglock.WithTTL(time.Hour))
	conn, pid := openly(t, db, "SET track_activities = off",
		"SELECT FROM pglock.locks WHERE name = 'report' FOR UPDATE")
	found := must.Get(admin.Backends(t.Context(), "report"))(t)
	if !slices.ContainsFunc(found, func(b lockadmin.Backend) bool {
		return b.PID == int(pid) && b.Use == lockadmin.BackendRow && b.Hidden && b.State == ""
	}) {
		t.Errorf("%+v, want the hidden process %d at the row", found, pid)
	}
	var suspects []string
	err := db.Conn(t).QueryRow(t.Context(), "SELECT names FROM pglock.list_suspects()").Scan(&suspects)
	if err != nil || !slices.Equal(suspects, []string{"report"}) {
		t.Errorf("suspected are %q, %v; want report", suspects, err)
	}
	e := must.Get(admin.Explain(t.Context(), "report"))(t)
	if e.Verdicts[0].Kind != "row" || len(e.Unseen) != 1 || !strings.Contains(e.Unseen[0], "track_activities") {
		t.Errorf("%+v, not seen is %q; want a verdict about the row", e.Verdicts[0], e.Unseen)
	}
	execute(t, conn, "LOCK TABLE pglock.locks")
	all := must.Get(admin.Overview(t.Context(), 20))(t)
	if len(all.Locks) != 1 || all.Locks[0].Kind != "table" {
		t.Errorf("%+v, want that the table is locked", all)
	}
	execute(t, conn, "COMMIT")
}

// Only who has the key of a session can say which connection is its heartbeat's. To take the same advisory locks
// misleads nobody: neither before the session marks its connection nor while it does nor when that connection has
// ended.
func TestI5_NobodyPosesAsTheHeartbeatOfAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	admin, owner := newAdmin(t, db.Pool(t)), db.Conn(t)
	key, grant := uuid.NewString(), uuid.NewString()
	execute(t, owner, `SELECT pglock.acquire_lease('report', $1::text::uuid, $2::text::uuid, 'holder', '1 h')`, grant,
		key)
	mallory := db.Conn(t)
	poses := func(exclusive string) { // takes what can be made of the session's ID, and whatever others have taken
		t.Helper()
		execute(t, mallory, `SELECT pg_try_advisory_lock`+exclusive+
			`(('x' || left(replace(session_id::text, '-', ''), 16))::bit(64)::bigint) FROM pglock.get_lock('report')`)
		execute(t, mallory, `SELECT pg_try_advisory_lock`+exclusive+
			`(classid::bigint << 32 | objid::bigint) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND pid <> pg_backend_pid()`)
	}
	shows := func(when string, pids ...int) {
		t.Helper()
		all, err := admin.Backends(t.Context(), "report")
		var got []int
		for _, b := range all {
			got = append(got, b.PID)
		}
		if err != nil || !slices.Equal(got, pids) {
			t.Errorf("%s: processes %v, %v; want %v", when, got, err, pids)
		}
		sessions := texts(t, admin.Sessions(t.Context(), lockadmin.SessionsQuery{}), func(s lockadmin.Session) string {
			return fmt.Sprint(s.PID)
		})
		if want := fmt.Sprint(append(pids, 0)[0]); len(sessions) != 1 || sessions[0] != want {
			t.Errorf("%s: the session has the process %v, want %s", when, sessions, want)
		}
	}
	poses("")
	shows("before the session has marked a connection")
	heart := db.Conn(t)
	pid := int(heart.PgConn().PID())
	var marked bool
	if err := heart.QueryRow(t.Context(), `SELECT pglock.mark_connection($1::text::uuid, $2, 'holder', 'v1.0.0')`, key,
		pid).Scan(&marked); err != nil || !marked {
		t.Fatalf("marked: %v, %v", marked, err)
	}
	shows("marked", pid)
	poses("_shared")
	shows("while somebody has taken the same locks", pid)
	execute(t, owner, `SELECT pg_terminate_backend($1, 10000)`, pid)
	shows("when the connection has ended")
	if err := mallory.QueryRow(t.Context(),
		`SELECT pglock.mark_connection(session_id, $1, 'holder', 'v1.0.0') FROM pglock.get_lock('report')`,
		mallory.PgConn().PID()).Scan(&marked); err != nil {
		t.Fatal(err)
	}
	found, err := admin.Backends(t.Context(), "report") // the ID is no key
	if err != nil || len(found) != 0 {
		t.Errorf("marked with the ID of the session: %+v, %v", found, err)
	}
}

// Behind a pooler the process serves others in turn, and a lock of its session would never end.
func TestConnectionThatEndsAtAPoolerIsNotMarked(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	for _, tc := range []struct {
		key  string
		pid  any
		want bool
	}{
		{"gen_random_uuid()", conn.PgConn().PID() + 1, false},
		{"gen_random_uuid()", nil, false},
		{"NULL", conn.PgConn().PID(), false},
		{"gen_random_uuid()", conn.PgConn().PID(), true},
	} {
		var marked bool
		var locks int
		if err := conn.QueryRow(t.Context(), "SELECT pglock.mark_connection("+tc.key+", $1)",
			tc.pid).Scan(&marked); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = "+
			"pg_backend_pid()").Scan(&locks); err != nil {
			t.Fatal(err)
		}
		if marked != tc.want || (locks == 1) != tc.want {
			t.Errorf("%+v: marked: %v, with %d locks", tc, marked, locks)
		}
	}
}

// marks counts the statements that mark a connection, and those that renew.
type marks struct{ marked, renewed atomic.Int64 }

func (m *marks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	switch {
	case strings.Contains(q.SQL, "mark_connection"):
		m.marked.Add(1)
	case strings.Contains(q.SQL, "renew_leases"):
		m.renewed.Add(1)
	}
	return ctx
}

func (m *marks) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestConnectionIsMarkedOnceAndByTheHeartbeatAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	var m marks
	pool := db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &m })
	_, lease := beating(t, pool, "report")
	for m.renewed.Load() < 5 {
		must.Get(lease.Extend(t.Context(), 2*time.Hour))(t)
	}
	if n := m.marked.Load(); n != 1 {
		t.Errorf("marked %d times, want once", n)
	}
	must.Do(t, lease.Release(t.Context()))
}

func TestBackendsOfANameThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	admin := newAdmin(t, pgtest.Database(t).Pool(t))
	if _, err := admin.Backends(t.Context(), ""); !errors.Is(err, pglock.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	if all, err := admin.Backends(t.Context(), "never used"); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v; want nothing", all, err)
	}
}
