package pglock_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// chatter is what the server tells a client about its statements besides their answers.
type chatter struct {
	mu   sync.Mutex
	text strings.Builder
}

// chatty makes a pool whose user has the server tell it the plan of every statement, also of those inside functions,
// made for the values at hand.
func chatty(t *testing.T, db *pgtest.DB, roles ...string) (*pgxpool.Pool, *chatter) {
	t.Helper()
	heard := &chatter{}
	user := login(t, db, roles...)
	return db.Pool(t, user, func(c *pgxpool.Config) {
		execute(t, db.Conn(t), fmt.Sprintf("ALTER ROLE %s SET log_min_messages = panic", c.ConnConfig.User))
		c.MaxConns = 1
		for name, value := range map[string]string{
			"client_min_messages": "log", "plan_cache_mode": "force_custom_plan", "debug_pretty_print": "off",
			"debug_print_parse": "on", "debug_print_rewritten": "on", "debug_print_plan": "on",
			"log_parameter_max_length_on_error": "-1", "plpgsql.print_strict_params": "on",
		} {
			c.ConnConfig.RuntimeParams[name] = value
		}
		c.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { heard.add((*pgconn.PgError)(n)) }
	}), heard
}

func (h *chatter) add(n *pgconn.PgError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, text := range []string{n.Message, n.Detail, n.Hint, n.Where, n.InternalQuery} {
		h.text.WriteString(strings.Join(strings.Fields(text), " ") + "\n")
	}
}

// take returns what was told since the last time.
func (h *chatter) take() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.text.Reset()
	return h.text.String()
}

// dumped is how a plan shows these bytes.
func dumped(value []byte) string {
	var text []string
	for _, b := range value {
		text = append(text, fmt.Sprint(int8(b)))
	}
	return strings.Join(text, " ")
}

// secrets are grant IDs and owners, by what they are of.
type secrets map[uuid.UUID]string

// of makes a secret.
func (s secrets) of(what string) uuid.UUID {
	id := uuid.New()
	s[id] = what
	return id
}

// in finds those that a text has.
func (s secrets) in(text string) (found []string) {
	for id, what := range s {
		if strings.Contains(text, id.String()) || strings.Contains(text, dumped(id[:])) {
			found = append(found, what)
		}
	}
	return found
}

// others fills the locks of others: a holder with a queue, readers, a limit, waiters below a subtree that is held and
// for one below which somebody holds, and a lease that has run out. The caller has some of its own, with the given key
// and grant ID, for which others wait.
func (s secrets) others(t *testing.T, conn *pgx.Conn, own uuid.UUID) {
	t.Helper()
	ask := func(key, grant, owner uuid.UUID, call, name, holder, more string) {
		t.Helper()
		execute(t, conn, fmt.Sprintf(`SELECT pglock.%s($1, $2, $3, $4, '1 h', p_wait => true, p_session_ttl => '1 h',
			p_owner_id => $5 %s)`, call, more), name, grant, key, holder, owner)
	}
	other := func(call, name, holder, more string) {
		t.Helper()
		grant, owner := s.of("the grant ID of "+holder+" of "+name), s.of("the owner "+holder+" of "+name)
		key := uuid.New()
		ask(key, grant, owner, call, name, holder, more)
		if call == "acquire_subtree" { // the ticket of one is committed before it is granted
			ask(key, grant, owner, call, name, holder, more)
		}
	}
	const lock, tree, shared, limit = "acquire_lease", "acquire_subtree", ", p_mode => 'shared'",
		", p_mode => 'limit', p_capacity => 2"
	execute(t, conn, `SELECT pglock.set_history('test', 'all')`)
	for _, name := range []string{"plain", "gone"} {
		for _, holder := range []string{"holder", "first", "next"} {
			other(lock, name, holder, "")
		}
	}
	execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '5 s' WHERE name = 'gone'`)
	other(lock, "read", "reader", shared)
	other(lock, "read", "another", shared)
	other(lock, "read", "writer", "")
	for _, holder := range []string{"one", "two", "three"} {
		other(lock, "limited", holder, limit)
	}
	other(tree, "tree", "holder", "")
	other(lock, "tree/7", "waiter", "")
	other(lock, "wood/7", "holder", "")
	other(tree, "wood", "waiter", "")
	other(lock, "idle", "holder", "")
	execute(t, conn, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '2 days',
		ended_at = clock_timestamp() - interval '2 days' WHERE name = 'idle'`)
	for _, mine := range []struct{ call, name, more string }{
		{lock, "mine", ""}, {lock, "ours", shared}, {tree, "grove", ""}, {tree, "grove", ""}, {lock, "hill/7", ""},
	} {
		ask(own, own, own, mine.call, mine.name, "me", mine.more)
	}
	other(lock, "mine", "first", "")
	other(lock, "mine", "next", "")
	other(lock, "ours", "writer", "")
	other(lock, "grove/7", "waiter", "")
	other(tree, "hill", "waiter", "")
}

// callsOfUsers are calls of each function that a user may call. $new is a new ID, $own the key and the grant ID of the
// caller's own, $asks what a new request says of itself, and @x the token of lock x.
var callsOfUsers = []string{
	"acquire_lease('plain', $asks)", "acquire_lease('plain', $asks, p_wait => true)",
	"acquire_lease('gone', $asks)", "acquire_lease('gone', $asks, p_wait => true)",
	"acquire_lease('read', $asks, p_mode => 'shared', p_wait => true)",
	"acquire_lease('limited', $asks, p_mode => 'limit', p_capacity => 2, p_wait => true)",
	"acquire_lease('tree/7', $asks)", "acquire_lease('tree/8', $asks, p_wait => true)",
	"acquire_lease('wood/7', $asks)", "acquire_lease('wood/8', $asks, p_wait => true)",
	"acquire_lease('idle', $asks)", "acquire_lease('unused', $asks)",
	`acquire_leases('{plain,gone,tree/8,unused}', ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 4)), $new,
		'{h,h,h,h}', '{1 h,1 h,1 h,1 h}', '{NULL,NULL,NULL,NULL}', '{f,f,f,f}',
		'{exclusive,exclusive,exclusive,exclusive}', '{NULL,NULL,NULL,NULL}', '{t,t,t,t}', '1 h',
		'{NULL,NULL,NULL,NULL}', '{f,f,f,f}')`,
	"acquire_subtree('tree', $asks)", "acquire_subtree('tree', $asks, p_wait => false)",
	"acquire_subtree('wood', $asks, p_mode => 'shared')",
	"acquire_subtree('wood', $asks, p_wait => false)", "acquire_subtree('grove', $own, $own, 'me', '1 h')",
	"renew_leases('{mine,ours}', ARRAY[@mine, @ours], ARRAY[$own, $own], '{0,1}')",
	"renew_leases('{plain,mine}', ARRAY[@plain, @mine], ARRAY[$new, $new], '{0,0}', '1 s')",
	"check_leases('{plain,mine}', ARRAY[@plain, @mine], ARRAY[$new, $own], '{0,0}')",
	"release_lease('mine', @mine, $own)", "release_lease('ours', @ours, $own)", "release_lease('grove', @grove, $own)",
	"release_lease('hill/7', @hill, $own)", "release_lease('plain', @plain, $new)",
	`release_leases('{mine,ours,grove,hill/7}', ARRAY[@mine, @ours, @grove, @hill], ARRAY[$own, $own, $own, $own],
		'{0,1,0,0}')`,
	"hand_over('mine', @mine, $own, 'next')", "hand_over('mine', @mine, $own, 'nobody')",
	"hand_over('mine', @mine, $own, 'next', true)", "hand_over('plain', @plain, $new, 'next')",
	"give_up($own, '{mine}', ARRAY[$own])", "give_up($own, '{mine}', ARRAY[$own], true)",
	"give_up($own, '{mine,ours,grove,hill/7,plain}', ARRAY[$own, $own, $own, $own, $own])",
	"look($own, 'me', '1 h', '{1,2}')", "own_tickets($own, '{1,2}')",
	"announce('{plain,tree,wood,mine,tree/7,wood/7}', '{0,0,NULL,0,NULL,NULL}')", "watch('plain', '1 s')",
	"watch('limited', '1 s')", "mark_connection($own, pg_backend_pid(), 'me', 'v', '1 h', '{mine}')",
	"end_session($own)", "fence('mine', @mine, $own)", "fence('grove', @grove, $own, 'grove/7')",
	"fence_all('{mine,ours}', ARRAY[@mine, @ours], ARRAY[$own, $own])", "once('key', 'mine', @mine, $own)",
	`fence('mine', @mine, $own) f CROSS JOIN LATERAL pglock.seal(CASE WHEN f.xact IS NOT NULL
		THEN '{mine}'::text[] END)`,
	"outcome($new, $new, pglock.database_id())", "key_column('pg_class'::regclass, 'oid')",
	"key_columns('pg_class'::regclass)", "made_triggers()", "guard_triggers('{1259}', '{r}', '{k}')", "list_guards()",
	"broken_guards('plain')", "broken_guards(NULL)", "get_lock('plain')", "get_lock('limited')", "get_lock('tree/7')",
	"list_locks()", "list_locks(p_free => true)", "list_locks(p_queued => true)", "list_locks(p_waited => true)",
	"list_locks(p_order => 'waiting')", "list_locks(p_order => 'recent')", "list_waiters()",
	"list_waiters(p_order => 'age')", "list_waiters('plain')", "list_fences()", "list_fences('plain')",
	"session_rows(9, '', '', NULL, NULL, 'name', NULL, NULL)", "session_rows(9, '', '', NULL, NULL, 'age', NULL, NULL)",
	"list_sessions()", "holder_lives('{plain,tree}', '{0,0}')", "list_waits('plain')", "list_waits('mine')",
	"list_waits('tree')", "list_obstacles('tree/7')", "list_obstacles('wood')", "list_obstacles('plain')",
	"list_obstructed('tree')", "list_obstructed('wood/7')", "backend_pids('plain')", "list_backends('plain')",
	"list_blockers(pg_backend_pid())", "suspects(NULL, '{}', 20)", "suspects('{plain,tree/7,wood}', '{0}', 20)",
	"list_suspects()", "statistics(9)", "blocked_statistics()", "recent_events(0)", "schema_version()", "database_id()",
	"start_client()", "timeline()", "diagnose()", "wrong_rights()", "sweep()",
}

// callsOfOperators are those of the functions that they may call besides.
var callsOfOperators = []string{
	"break_lock('plain', 'r', 'a')", "break_lock('tree', 'r', 'a')", "break_lock('wood/7', 'r', 'a')",
	"break_lock('limited', 'r', 'a', @limited)", "break_lock('read', 'r', 'a', @read)",
	"break_lock('mine', 'r', 'a')", "break_session((SELECT session_id FROM pglock.get_lock('plain')), 'r', 'a')",
	"break_session((SELECT session_id FROM pglock.get_lock('mine')), 'r', 'a')",
	"break_session((SELECT session_id FROM pglock.list_waiters('wood')), 'r', 'a')",
	"prune_locks()", "list_history()", "replay_history()", "replay_history('plain')", "clock_steps()",
	"prune_history('0')", "history_settings()", "set_history('a', 'losses')", "bypass_guards('r', 'a')",
	"advance_epoch('r', 'a')",
}

// refusedCalls end with an error.
var refusedCalls = []string{
	"acquire_lease('mine', $asks, p_owner_id => $own, p_nested => true)",
	"acquire_lease('limited', $asks, p_mode => 'limit', p_capacity => 3)",
	"fence('plain', @plain, $new)", "once('key', 'plain', @plain, $new)", "seal('{plain}')",
	"guard_table('pg_class')", "unguard_table('pg_class')",
}

// A user can have the server print the plans of all statements, also of those that functions run with the rights of
// their owner. A plan for the values at hand has these, and with a row of the queue all of it.
func TestI5_NoPlanShowsTheGrantIDOfAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, hidden, own := db.Conn(t), secrets{}, uuid.New()
	hidden.others(t, conn, own)
	at := regexp.MustCompile("@[a-z]+")
	for role, calls := range map[string][]string{
		"pglock_user": callsOfUsers, "pglock_admin": slices.Concat(callsOfUsers, callsOfOperators),
	} {
		if !pgtest.Among(role, "pglock_admin") { // who may call all that a user may
			continue
		}
		calls = slices.Concat(calls, refusedCalls)
		for _, name := range must.Get(pgx.CollectRows(must.Get(conn.Query(t.Context(),
			`SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
				AND p.prorettype <> 'trigger'::regtype AND has_function_privilege($1, p.oid, 'EXECUTE')`,
			role))(t), pgx.RowTo[string]))(t) {
			if !strings.Contains("pglock."+strings.Join(calls, "pglock."), "pglock."+name+"(") {
				t.Errorf("%s may call %s, and nothing here does", role, name)
			}
		}
		pool, heard := chatty(t, db, role)
		mine, told := secrets{own: "own"}, false
		for _, call := range calls {
			other := fmt.Sprintf("'%s'::uuid", uuid.New())
			sql := at.ReplaceAllStringFunc(strings.NewReplacer("$own", fmt.Sprintf("'%s'::uuid", own), "$new", other,
				"$asks", other+", "+other+", 'h', '1 h'").Replace(call), func(name string) string {
				name = strings.Replace(name[1:], "hill", "hill/7", 1)
				return fmt.Sprintf("(SELECT token FROM pglock.get_lock('%s') LIMIT 1)", name)
			})
			tx := must.Get(pool.Begin(t.Context()))(t)
			_, err := tx.Exec(t.Context(), "SELECT * FROM pglock."+sql)
			_ = tx.Rollback(t.Context())
			if refused, is := errors.AsType[*pgconn.PgError](err); is {
				heard.add(refused)
			}
			if (err != nil) != slices.Contains(refusedCalls, call) {
				t.Errorf("%s: %s: %v", role, call, err)
			}
			text := heard.take()
			for _, what := range hidden.in(text) {
				t.Errorf("%s: %s shows %s", role, call, what)
			}
			told = told || len(mine.in(text)) > 0
		}
		if !told {
			t.Errorf("%s was told not even its own grant ID", role)
		}
	}
}

// A guard of rows reads the key of each row that is written. A writer may be one who may not read the table.
func TestI5_AGuardShowsNoRowToWhomMayNotReadIt(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	const secret = "known to readers alone"
	execute(t, conn, `CREATE TABLE public.accounts (id int, secret text)`)
	execute(t, conn, `INSERT INTO public.accounts VALUES (1, $1)`, secret)
	execute(t, conn, `SELECT pglock.guard_table('public.accounts', 'accounts', 'id')`)
	pool, heard := chatty(t, db, "pglock_user")
	execute(t, conn, "GRANT UPDATE, DELETE ON public.accounts TO "+pool.Config().ConnConfig.User)
	for _, write := range []string{"UPDATE public.accounts SET id = 1", "DELETE FROM public.accounts"} {
		tx := must.Get(pool.Begin(t.Context()))(t)
		id := uuid.New()
		if _, err := tx.Exec(t.Context(), `SELECT FROM pglock.acquire_lease('accounts/1', $1, $1, 'h', '1 h') a
			CROSS JOIN LATERAL pglock.fence('accounts/1', a.token, $1)`, id); err != nil {
			t.Fatal(err)
		}
		heard.take()
		if written, err := tx.Exec(t.Context(), write); err != nil || written.RowsAffected() != 1 {
			t.Fatalf("%s: %v, %v", write, written, err)
		}
		text := heard.take()
		if !strings.Contains(text, "guard_row(") || strings.Contains(text, dumped([]byte(secret))) {
			t.Errorf("%s: its plans show the row, or nothing, in %d bytes", write, len(text))
		}
		must.Do(t, tx.Rollback(t.Context()))
	}
}
