package pglock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// login makes a database user that is a member of the roles, and gives what makes a pool connect as it.
func login(t *testing.T, db *pgtest.DB, roles ...string) func(*pgxpool.Config) {
	t.Helper()
	admin := db.Conn(t)
	user := "pglock_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execute(t, admin, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'x'", user))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := admin.Exec(ctx, fmt.Sprintf("DROP OWNED BY %s; DROP ROLE %s", user, user)); err != nil {
			t.Errorf("drop the test's user: %v", err)
		}
	})
	for _, role := range roles {
		execute(t, admin, fmt.Sprintf("GRANT %s TO %s", role, user))
	}
	return func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = user, "x" }
}

func denied(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "42501"
}

func TestUserDoesEverythingButOperatorsWork(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	user := login(t, db, "pglock_user")
	pool := db.Pool(t, user)
	c := startClient(t, pool, pglock.WithDefaultTTL(time.Hour))
	l := mustAcquire(t, c, "report")
	if _, err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}
	must.Note(t, hooks.Of(l).Renew(t.Context()))
	if err := fencedstore.New(pool).Write(t.Context(), l, func(context.Context, pgx.Tx) error {
		return nil
	}); err != nil {
		t.Error(err)
	}
	if infos, err := lists.All(newAdmin(t, pool).Locks(t.Context(), lockadmin.LocksQuery{})); err != nil ||
		len(infos) != 1 {
		t.Errorf("List = %v, %v", infos, err)
	}
	if fences, err := lists.All(newAdmin(t, pool).Fences(t.Context(),
		lockadmin.FencesQuery{Lock: "report"})); err != nil ||
		len(fences) != 1 {
		t.Errorf("Fences = %v, %v", fences, err)
	}
	must.Note(t, mustAcquire(t, c, "other").Release(t.Context()))
	short := mustAcquire(t, c, "short", pglock.WithTTL(exercised))
	deadline := short.Deadline()
	pgtest.Eventually(t, "a heartbeat", func() bool {
		return short.Deadline().After(deadline.Add(exercised/6)) || !short.Valid()
	})
	must.Note(t, short.Release(t.Context()))

	places := mustAcquire(t, c, "places", pglock.WithLimit(2))
	if err := fencedstore.New(pool).Write(t.Context(), places, func(context.Context, pgx.Tx) error {
		return nil
	}); err != nil {
		t.Error(err)
	}
	queues := startClient(t, pool, pglock.WithDefaultTTL(exercised))
	exerciseQueue(t, queues, newAdmin(t, pool), "queue")
	if err := queues.Close(t.Context()); err != nil { // none of its statements is under way when rows are compared
		t.Error(err)
	}
	must.Note(t, places.Release(t.Context()))

	checkRefusals(t, conn, []refusal{
		{"Break", func(ctx context.Context) error {
			return ignore(newAdmin(t, pool).Break(ctx, "report", "stuck", lockadmin.BreakOptions{}))
		}, pglock.ErrPermission, []string{"pglock_admin"}},
		{"Events", func(ctx context.Context) error {
			return ignore(lists.All(newAdmin(t, pool).History(ctx, lockadmin.HistoryQuery{})))
		}, pglock.ErrPermission, []string{"pglock_admin"}},
	})
	for _, sql := range []string{
		"SELECT * FROM pglock.locks", "SELECT grant_id FROM pglock.fences", "SELECT * FROM pglock.events",
		"SELECT * FROM pglock.installation",
		"UPDATE pglock.locks SET expires_at = '-infinity'", "DELETE FROM pglock.fences", "TRUNCATE pglock.locks",
		"SELECT nextval('pglock.fencing_token_seq')", "SELECT setval('pglock.fencing_token_seq', 1)",
		"SELECT last_value FROM pglock.fencing_token_seq",
		"SELECT * FROM pglock.pglock_schema_migrations", "CREATE TABLE pglock.mine ()", "CREATE FUNCTION pglock.f() " +
			"RETURNS int LANGUAGE sql AS 'SELECT 1'",
		"SELECT pglock.prune_locks()", "SELECT pglock.prune_history()", "SELECT pglock.list_history()",
		"SELECT pglock.break_lock('report', 'r', 'a')",
		"SELECT pglock.lost_reason('report', 1, NULL, 0)", "SELECT pglock.check_request(NULL, '1 s', true, true)",
		"SELECT pglock.require_durable_commit()", "SELECT pglock.require_unrenewed()",
		"SELECT pglock.require_read_committed()", "SELECT pglock.require_primary()",
		"SELECT pglock.draw_token(0)", "SELECT pglock.epoch_now()", "SELECT pglock.advance_epoch('r', 'a')",
		"SELECT pglock.raise_lost('report', 1, 'broken')", "SELECT pglock.raise_stale('report', 1, 2)",
		"SELECT pglock.refuse_lease(NULL, 1, NULL)", "SELECT pglock.refuse_unseen_end('55000')",
		"SELECT pglock.write_receipt(gen_random_uuid(), gen_random_uuid())",
		"SELECT pglock.bypass_guards('r', 'a')",
	} {
		if _, err := pool.Exec(t.Context(), sql); !denied(err) {
			t.Errorf("%s: %v, want permission denied", sql, err)
		}
	}
}

func TestUserTouchesNoTableOfTheQueueAndCallsNoneOfItsHelpers(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	c := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "held")
	execute(t, conn, "SELECT pglock.acquire_lease('held', gen_random_uuid(), gen_random_uuid(), 'w', '1 s', p_wait "+
		"=> true, p_session_ttl => '1 h')")
	found, err := conn.Query(t.Context(),
		`SELECT format('SELECT pglock.%I(%s)', p.proname, (SELECT string_agg(CASE WHEN p.provariadic = 0 THEN '' ELSE 'VARIADIC ' END || 'NULL::' || a::regtype, ', ') FROM unnest(p.proargtypes::oid[]) a))
		FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace AND p.prorettype <> 'trigger'::regtype AND NOT has_function_privilege('pglock_admin', p.oid, 'EXECUTE')`)
	if err != nil {
		t.Fatal(err)
	}
	helpers, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil || len(helpers) < 40 {
		t.Fatalf("helpers: %v, %v", helpers, err)
	}
	before := rows(t, conn)
	for _, role := range []string{"pglock_user", "pglock_admin"} {
		pool := db.Pool(t, login(t, db, role))
		for _, sql := range append(helpers,
			"SELECT * FROM pglock.waiters", "SELECT grant_id FROM pglock.waiters", "DELETE FROM pglock.waiters",
			"UPDATE pglock.waiters SET ticket = 1",
			"INSERT INTO pglock.waiters (name) VALUES ('x')", "TRUNCATE pglock.waiters",
			"SELECT * FROM pglock.sessions", "UPDATE pglock.sessions SET alive_until = '-infinity'",
			"DELETE FROM pglock.sessions", "TRUNCATE pglock.sessions",
			"SELECT nextval('pglock.ticket_seq')", "SELECT setval('pglock.ticket_seq', 1)",
			"SELECT last_value FROM pglock.ticket_seq",
			"SELECT * FROM pglock.spent_grants", "SELECT owner_id FROM pglock.locks",
			"SELECT * FROM pglock.receipts", "INSERT INTO pglock.receipts VALUES (gen_random_uuid(), "+
				"gen_random_uuid(), now())", "DELETE FROM pglock.receipts",
			"TABLE pglock.described",
		) {
			if _, err := pool.Exec(t.Context(), sql); !denied(err) {
				t.Errorf("%s as %s: %v, want permission denied", sql, role, err)
			}
			if after := rows(t, conn); after != before {
				t.Fatalf("%s as %s: rows before:\n%s\nafter:\n%s", sql, role, before, after)
			}
		}
	}
}

// The functions that users may call, and no others: what a migration adds is granted on purpose.
func TestUserMayCallTheseFunctionsAlone(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	user := []string{"acquire_lease", "acquire_leases", "acquire_subtree", "announce", "backend_pids",
		"blocked_statistics", "broken_guards",
		"check_leases", "database_id", "diagnose",
		"end_session", "fence", "fence_all", "get_lock", "give_up", "guard_table", "guard_triggers", "guard_write",
		"hand_over", "holder_lives", "key_column", "key_columns", "list_backends", "list_blockers", "list_fences",
		"list_guards", "list_locks", "list_obstacles", "list_obstructed",
		"list_sessions", "list_suspects", "list_waiters", "list_waits", "look", "made_triggers", "mark_connection",
		"once", "outcome", "own_tickets",
		"recent_events", "release_lease", "release_leases", "renew_leases",
		"schema_version", "seal", "session_rows",
		"start_client", "statistics", "suspects", "sweep", "timeline", "unguard_table", "watch", "wrong_rights"}
	admin := append([]string{"advance_epoch", "break_lock", "break_session", "bypass_guards", "clock_steps",
		"history_settings",
		"list_history", "prune_history", "prune_locks", "replay_history", "set_history"}, user...)
	slices.Sort(admin)
	for role, want := range map[string][]string{"pglock_user": user, "pglock_admin": admin} {
		found := must.Get(conn.Query(t.Context(),
			`SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
			AND has_function_privilege($1, p.oid, 'EXECUTE') ORDER BY p.proname COLLATE "C"`, role))(t)
		if names, err := pgx.CollectRows(found, pgx.RowTo[string]); err != nil || !slices.Equal(names, want) {
			t.Errorf("%s may call %v, %v; want %v", role, names, err, want)
		}
	}
}

// Everybody sees the IDs of sessions, but can do nothing in their name: that takes the key.
func TestI5_NobodySpeaksForTheSessionOfAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	c, waits := startClient(t, db.Pool(t)), startClient(t, db.Pool(t))
	admin, l := newAdmin(t, db.Pool(t)), mustAcquire(t, c, "report")
	acquired := must.Go(func() error {
		next, err := waits.Acquire(t.Context(), "report")
		if err == nil {
			err = next.Release(t.Context())
		}
		return err
	})
	var session string
	pgtest.Eventually(t, "a ticket", func() bool {
		waiters, err := lists.All(admin.Waiters(t.Context(), lockadmin.WaitersQuery{Lock: "report"}))
		if err == nil && len(waiters) == 1 {
			session = waiters[0].Session
		}
		return session != ""
	})
	pool := db.Pool(t, login(t, db, "pglock_user"))
	for _, sql := range []string{"SELECT 1 FROM pglock.end_session($1) AS e (done) WHERE done",
		"SELECT ticket FROM pglock.look($1, 'h', '1 s')",
		"SELECT 1 FROM pglock.give_up($1::text::uuid, '{report}', ARRAY[$1::text::uuid]) WHERE ended OR place > 0",
		"SELECT 1 FROM pglock.acquire_lease('report', $1::text::uuid, $1::text::uuid, 'h', '1 s') WHERE granted"} {
		if found, err := pool.Exec(t.Context(), sql, session); err != nil || found.RowsAffected() != 0 {
			t.Errorf("%s: %v, %v", sql, found, err)
		}
	}
	if waiters, err := lists.All(admin.Waiters(t.Context(), lockadmin.WaitersQuery{Lock: "report"})); err != nil ||
		len(waiters) != 1 ||
		!waiters[0].Alive {
		t.Errorf("%+v, %v", waiters, err)
	}
	must.Note(t, l.Release(t.Context()))
	must.Note(t, <-acquired)
}

func TestOperatorBreaksAndReadsTheHistory(t *testing.T) {
	db := pgtest.Parallel(t)
	c := startClient(t, db.Pool(t, login(t, db, "pglock_admin")))
	admin := newAdmin(t, db.Pool(t, login(t, db, "pglock_admin")))
	l := mustAcquire(t, c, "report")
	broken, err := admin.Break(t.Context(), "report", "stuck", lockadmin.BreakOptions{})
	if err != nil || broken.Token != l.Token() {
		t.Errorf("the break: %+v, %v; want that of token %d", broken, err, l.Token())
	}
	var lost *pglock.LostError
	if _, err := l.Check(t.Context()); !errors.As(err, &lost) || lost.Reason != pglock.ReasonBroken {
		t.Errorf("the holder of a lease that was broken hears %v", err)
	}
	if next := mustAcquire(t, c, "report"); next.Token() <= l.Token() {
		t.Errorf("the next token is %d, after %d", next.Token(), l.Token())
	}
	if events, err := lists.All(admin.History(t.Context(), lockadmin.HistoryQuery{})); err != nil || len(events) != 1 ||
		!strings.HasPrefix(events[0].DBUser, "pglock_test_") ||
		events[0].Kind != lockadmin.EventBreak || events[0].Token != l.Token() || events[0].Reason != "stuck" {
		t.Errorf("Events = %+v, %v; want the break by the login user", events, err)
	}
	pool := db.Pool(t, login(t, db, "pglock_admin"))
	if _, err := pool.Exec(t.Context(), "SELECT pglock.prune_locks(), pglock.prune_history()"); err != nil {
		t.Error(err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT * FROM pglock.locks"); !denied(err) {
		t.Errorf("an operator reads the table: %v", err)
	}
}

// A user with NOINHERIT has its rights only where the pool's hook has set the role: also on the connections that the
// client makes for itself.
func TestUserWhoseRoleAHookOfThePoolSetsKeepsItsLeases(t *testing.T) {
	t.Parallel()
	set := func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET ROLE pglock_user")
		return err
	}
	for hook, on := range map[string]func(*pgxpool.Config){
		"AfterConnect": func(c *pgxpool.Config) { c.AfterConnect = set },
		"PrepareConn": func(c *pgxpool.Config) {
			c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) { return true, set(ctx, conn) }
		},
		"BeforeAcquire": func(c *pgxpool.Config) {
			//lint:ignore SA1019 the pool still runs it
			c.BeforeAcquire = func(ctx context.Context, conn *pgx.Conn) bool { return set(ctx, conn) == nil }
		},
	} {
		t.Run(hook, func(t *testing.T) {
			db := pgtest.Parallel(t)
			user := login(t, db)
			pool := db.Pool(t, user, func(c *pgxpool.Config) {
				execute(t, db.Conn(t), fmt.Sprintf("ALTER ROLE %[1]s NOINHERIT; GRANT pglock_user TO %[1]s",
					c.ConnConfig.User))
				on(c)
			})
			l := mustAcquire(t, startClient(t, pool), "report", pglock.WithTTL(exercised))
			deadline := l.Deadline()
			pgtest.Eventually(t, "a renewal", func() bool {
				return l.Deadline().After(deadline.Add(exercised/6)) || !l.Valid()
			})
			must.Note(t, l.Release(t.Context()))
		})
	}
}

func TestStrangerIsRefusedWithTheRoleToGrant(t *testing.T) {
	db := pgtest.Parallel(t)
	_, err := pglock.New(t.Context(), db.Pool(t, login(t, db)))
	if !errors.Is(err, pglock.ErrPermission) || !strings.Contains(err.Error(), "pglock_user") {
		t.Errorf("%v, want ErrPermission that names pglock_user", err)
	}
}

// What the server refuses of a connection is no right on the locks: another role would not help.
func TestAUserWhoMayNotConnectIsNotToldToTakeARole(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db.Conn(t), "REVOKE CONNECT ON DATABASE "+pgx.Identifier{db.Name()}.Sanitize()+" FROM PUBLIC")
	pool := db.Pool(t, login(t, db, "pglock_user"))
	_, err := pglock.New(t.Context(), pool)
	want := fmt.Sprintf("GRANT CONNECT ON DATABASE %q TO %q", db.Name(), pool.Config().ConnConfig.User)
	for _, err := range []error{err, fencedstore.GuardTable(t.Context(), pool, "accounts")} {
		if !denied(err) || errors.Is(err, pglock.ErrPermission) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "pglock_user") {
			t.Errorf("%v, want only that it cannot connect, and %q", err, want)
		}
	}
}

func TestPublicMayExecuteAndReadNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	for what, sql := range map[string]string{
		"execute": `SELECT p.oid::regprocedure::text FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
			WHERE p.pronamespace = 'pglock'::regnamespace AND a.grantee = 0`,
		"touch": `SELECT c.oid::regclass::text FROM pg_class c, aclexplode(c.relacl) a
			WHERE c.relnamespace = 'pglock'::regnamespace AND a.grantee <> c.relowner`,
		"use": `SELECT nspname FROM pg_namespace, aclexplode(nspacl) a WHERE nspname = 'pglock' AND a.grantee = 0`,
	} {
		rows := must.Get(conn.Query(t.Context(), sql))(t)
		if found, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(found) != 0 {
			t.Errorf("everybody may %s %v, %v", what, found, err)
		}
	}
}

// The four most called functions leave nothing to the search_path instead: fixing it costs a tenth of their time.
func TestFunctionsThatUsersCallOrThatHaveMoreRightsFixTheirSearchPath(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	loose := func() (texts map[string]string) {
		texts = make(map[string]string)
		rows, err := conn.Query(t.Context(), `SELECT p.proname, p.prosrc FROM pg_proc p
			WHERE p.pronamespace = 'pglock'::regnamespace AND (p.prosecdef OR has_function_privilege('pglock_user', p.oid, 'EXECUTE'))
			AND replace(coalesce(p.proconfig[1], ''), '"', '') <> 'search_path=pglock, pg_temp'`)
		if err != nil {
			t.Fatal(err)
		}
		var name, text string
		if _, err := pgx.ForEachRow(rows, []any{&name, &text}, func() error {
			texts[name] = text
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return texts
	}
	texts := loose()
	if names := slices.Sorted(maps.Keys(texts)); !slices.Equal(names, []string{
		"acquire_lease", "fence", "fence_all", "fence_commit", "guard_write", "once", "release_lease", "seal",
	}) {
		t.Errorf("without a search_path of their own: %v", names)
	}
	for name, text := range texts {
		if found := pgtest.Unqualified(text, "pglock"); len(found) != 0 {
			t.Errorf("%s leaves to the search_path: %q", name, found)
		}
		for i := range len(text) { // and this would be found, wherever it was
			for _, qualification := range []string{"pg_catalog.", "pglock."} {
				if strings.HasPrefix(text[i:], qualification) &&
					len(pgtest.Unqualified(text[:i]+text[i+len(qualification):], "pglock")) == 0 {
					t.Errorf("%s without %s before %.20q leaves nothing to the search_path", name, qualification,
						text[i+len(qualification):])
				}
			}
		}
	}
	execute(t, conn,
		`CREATE FUNCTION pglock.careless(p text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN RETURN p = 'x'; END $$`)
	if text := loose()["careless"]; len(pgtest.Unqualified(text, "pglock")) == 0 {
		t.Errorf("nothing was seen of %q", text)
	}
}

func TestI5_NobodyReadsTheGrantIDOfAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	owner := startClient(t, db.Pool(t, login(t, db, "pglock_user")), pglock.WithDefaultTTL(time.Hour))
	l := mustAcquire(t, owner, "report")
	const abandoned, queued, owned = "99999999-2222-3333-4444-555555555555", "99999999-2222-3333-4444-666666666666",
		"99999999-2222-3333-4444-777777777777"
	pool := db.Pool(t, login(t, db, "pglock_admin"))
	if _, err := pool.Exec(t.Context(),
		"SELECT pglock.give_up(gen_random_uuid(), '{abandoned}', ARRAY[$1::uuid], true)", abandoned); err != nil {
		t.Fatal(err)
	}
	execute(t, db.Conn(t), "SELECT pglock.acquire_lease('report', $1::text::uuid, gen_random_uuid(), 'w', '1 s', "+
		"p_wait => true, p_session_ttl => '1 h', p_owner_id => $2::text::uuid)",
		queued, owned)
	for _, sql := range []string{
		"SELECT x::text FROM pglock.list_locks('', true) x", "SELECT x::text FROM pglock.get_lock('report') x",
		"SELECT x::text FROM pglock.list_locks(p_order => 'age') x",
		"SELECT x::text FROM pglock.list_waiters(p_order => 'age') x",
		"SELECT x::text FROM pglock.list_sessions() x",
		"SELECT x::text FROM pglock.holder_lives('{report}', '{0}') x",
		"SELECT x::text FROM pglock.list_waiters() x", "SELECT x::text FROM pglock.watch('report', '1 s') x",
		"SELECT x::text FROM pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'h', '1 s', p_wait " +
			"=> true) x",
		"SELECT x::text FROM pglock.give_up(gen_random_uuid(), '{report}', ARRAY[gen_random_uuid()]) x",
		"SELECT x::text FROM pglock.list_fences('report') x", "SELECT x::text FROM pglock.list_history() x",
		"SELECT x::text FROM pg_stat_activity x", "SELECT x::text FROM pg_locks x", "SELECT x::text FROM pg_stats x " +
			"WHERE schemaname = 'pglock'",
		"SELECT x::text FROM pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'h', '1 s') x",
	} {
		rows := must.Get(pool.Query(t.Context(), sql))(t)
		texts := must.Get(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
		for _, text := range texts {
			for _, secret := range []string{exported(l).String(), abandoned, queued, owned} {
				if strings.Contains(text, secret) {
					t.Errorf("%s shows a grant ID or an owner: %s", sql, text)
				}
			}
		}
	}
	for _, call := range []string{"fence"} {
		_, err := pool.Exec(t.Context(), "SELECT pglock."+call+"($1, $2, gen_random_uuid())", l.Name(),
			int64(l.Token()))
		if pgErr, is := errors.AsType[*pgconn.PgError](err); !is || pgErr.Code != "LK003" ||
			strings.Contains(fmt.Sprint(pgErr), exported(l).String()) {
			t.Errorf("%s with another grant ID: %v, want LK003", call, err)
		}
	}
	var released bool
	if err := pool.QueryRow(t.Context(), "SELECT (pglock.release_lease($1, $2, gen_random_uuid())).released", l.Name(),
		int64(l.Token())).Scan(&released); err != nil || released {
		t.Errorf("release with another grant ID: %v, %v", released, err)
	}
	if _, err := l.Check(t.Context()); err != nil {
		t.Errorf("the owner's lease: %v", err)
	}
}

// A circle of waiters names locks and labels. Whose they are stays a secret: with an owner's ID somebody could ask for
// locks in its name, so that it is refused its own.
func TestI5_NobodyReadsTheOwnersOfACircle(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	// owners, and keys of sessions
	const a, b = "99999999-2222-3333-4444-00000000000a", "99999999-2222-3333-4444-00000000000b"
	ask := func(name, owner string, nested bool) {
		t.Helper()
		execute(t, conn, "SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, 'label of ' || $1, '1 "+
			"h', p_wait => true, p_session_ttl => '1 h', p_owner_id => $2::text::uuid, p_nested => $3)", name, owner,
			nested)
	}
	ask("one", a, false)
	ask("two", b, false)
	ask("two", a, true)
	ask("one", b, true)
	circle := pgtest.One[string](t, conn, `SELECT circle FROM pglock.look($1::text::uuid, 'h', '1 h', (SELECT array_agg(ticket) FROM pglock.list_waiters('one')))`, b)
	var links []map[string]any
	if err := json.Unmarshal([]byte(circle), &links); err != nil || len(links) != 2 || links[0]["lock"] != "one" ||
		links[1]["lock"] != "two" {
		t.Fatalf("%s, %v; want a circle of two", circle, err)
	}
	for _, link := range links {
		if keys := slices.Sorted(maps.Keys(link)); !slices.Equal(keys, []string{"holder", "lock", "queued", "ticket",
			"waiter"}) {
			t.Errorf("a step of the circle tells %q", keys)
		}
	}
	if strings.Contains(circle, "99999999") {
		t.Errorf("the circle shows an owner: %s", circle)
	}
}
