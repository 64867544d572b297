package pglock_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// The page of the SQL functions shows every function that users and operators may call, its arguments in order, and a
// question mark after each that may be left out.
func TestThePageOfTheSQLFunctionsNamesEveryArgument(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../docs/sql-api.md"))(t)
	type function struct {
		Name      string
		Arguments []string
	}
	rows := must.Get(pgtest.Database(t).Conn(t).Query(t.Context(), `
		SELECT p.proname::text AS name, ARRAY(
			SELECT substr(a.name, 3) || CASE WHEN a.n > p.pronargs - p.pronargdefaults THEN '?' ELSE '' END
			FROM unnest(p.proargnames) WITH ORDINALITY a (name, n)
			WHERE coalesce(p.proargmodes[a.n::int], 'i') = 'i' ORDER BY a.n) AS arguments
		FROM pg_proc p
		WHERE p.pronamespace = 'pglock'::regnamespace AND has_function_privilege('pglock_admin', p.oid, 'EXECUTE')
			AND p.proname NOT IN ('backend_pids', 'guard_write', 'made_triggers', 'guard_triggers', 'key_column',
				'key_columns') -- for other functions`))(t)
	functions, err := pgx.CollectRows(rows, pgx.RowToStructByName[function])
	if err != nil || len(functions) == 0 {
		t.Fatalf("%d functions: %v", len(functions), err)
	}
	argument := regexp.MustCompile(`(?:^|, )(\w+\??)`)
	for _, f := range functions {
		shown := regexp.MustCompile("`" + f.Name + "\\(([^`]*)\\)`").FindSubmatch(page)
		if shown == nil {
			t.Errorf("the page does not show %s(%s)", f.Name, strings.Join(f.Arguments, ", "))
			continue
		}
		var names []string
		for _, m := range argument.FindAllSubmatch(shown[1], -1) {
			names = append(names, string(m[1]))
		}
		if !slices.Equal(names, f.Arguments) {
			t.Errorf("the page shows %s(%s), want %s",
				f.Name, strings.Join(names, ", "), strings.Join(f.Arguments, ", "))
		}
	}
}
