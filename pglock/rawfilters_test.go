package pglock_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A filter of NULL chooses everything, as one that is left out does. A caller's own variable may be NULL.
func TestAFilterOfNULLChoosesEverything(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	for _, name := range []string{"held", "broken", "nobody waits"} {
		execute(t, conn, `SELECT pglock.acquire_lease($1, `+someID+`, `+someID+`, 'h', '1 h')`, name)
	}
	execute(t, conn, `SELECT pglock.break_lock('broken', 'r', 'a')`)
	execute(t, conn, `SELECT pglock.acquire_lease('held', gen_random_uuid(), gen_random_uuid(), 'w', '1 h', p_wait => true,
		p_session_ttl => '1 h')`)
	execute(t, conn, `SELECT pglock.fence('held', 1, `+someID+`)`)

	type list struct {
		Name    string
		Filters []string
		Ordered bool
	}
	rows := must.Get(conn.Query(t.Context(), `
		SELECT p.proname::text AS name, coalesce('p_order' = ANY (p.proargnames), false) AS ordered, ARRAY(
			SELECT a.name FROM unnest(p.proargnames[:p.pronargs]) AS a (name)
			WHERE a.name NOT IN ('p_limit', 'p_order')) AS filters
		FROM pg_proc p
		WHERE p.pronamespace = 'pglock'::regnamespace AND (p.proname LIKE 'list\_%' OR p.proname = 'replay_history')
			AND p.pronargs > 0 AND p.pronargs = p.pronargdefaults`))(t)
	lists := must.Get(pgx.CollectRows(rows, pgx.RowToStructByName[list]))(t)
	seen := map[string]bool{}
	for _, l := range lists {
		orders := []string{""}
		if l.Ordered {
			orders = []string{"p_order => 'name'", "p_order => 'age'"}
		}
		for _, order := range orders {
			count := func(args ...string) string {
				call := fmt.Sprintf("pglock.%s(%s)", l.Name, strings.Trim(strings.Join(args, ", "), ", "))
				return answerOf(t, conn, "SELECT count(*)::text FROM "+call)
			}
			all := count(order)
			seen[l.Name] = all != "0"
			for _, filter := range l.Filters {
				if n := count(filter+" => NULL", order); n != all {
					t.Errorf("%s(%s) has %s rows, and %s where %s is NULL", l.Name, order, all, n, filter)
				}
			}
		}
	}
	for _, name := range []string{"locks", "waiters", "fences", "sessions", "history"} {
		if !seen["list_"+name] {
			t.Errorf("list_%s was not seen with a row", name)
		}
	}
}

func TestBreakSessionAfterNULLBeginsWithTheFirstLock(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	execute(t, conn, `SELECT pglock.acquire_lease('held', gen_random_uuid(), `+someID+`, 'h', '1 h')`)
	names := answerOf(t, conn, `SELECT string_agg(name, ' ') FROM pglock.break_session(pglock.session_of(`+someID+`),
		'r', 'a', p_after => NULL)`)
	if held := answerOf(t, conn, "SELECT count(*)::text FROM pglock.list_locks()"); names != "held" || held != "0" {
		t.Errorf("it ended the leases of %q, %s locks are still held", names, held)
	}
}
