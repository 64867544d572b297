package migrations_test

import (
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// Only the two roles may do anything with the schema, and only through the functions granted to them. An
// application's function in a shared schema keeps its rights.
func TestMigrationGivesNobodyMoreRightsThanTheyNeed(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE SCHEMA pglock; CREATE FUNCTION pglock.hint(text) RETURNS int LANGUAGE sql AS 'SELECT 1'")
	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}
	if open := text(t, conn, `SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '') FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
		AND p.oid <> 'pglock.hint(text)'::regprocedure AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0))`); open != "" {
		t.Errorf("everybody may call %s", open)
	}
	if open := text(t, conn, `SELECT coalesce(string_agg(c.relname, ', '), '') FROM pg_class c CROSS JOIN unnest('{pglock_user,pglock_admin,public}'::text[]) r
		WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind IN ('r', 'v')
			AND has_table_privilege(r, c.oid, 'SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER')`); open != "" {
		t.Errorf("tables or views that a role may touch: %s", open)
	}
	// A function with the rights of the schema's owner fixes its search_path, or leaves nothing to it. The others are
	// for callers that have fixed it.
	rows, err := conn.Query(t.Context(), `SELECT p.oid::regprocedure::text, p.prosrc FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
		AND p.prosecdef AND coalesce(p.proconfig::text, '') !~ 'search_path=[^,]*pglock[^,]*, pg_temp"'`)
	if err != nil {
		t.Fatal(err)
	}
	loose := regexp.MustCompile(`\b(acquire_lease|release_lease|fence_commit)\(`)
	var function, source string
	if _, err := pgx.ForEachRow(rows, []any{&function, &source}, func() error {
		if found := pgtest.Unqualified(source, "pglock"); len(found) > 0 || !loose.MatchString(function) {
			t.Errorf("%s has no search_path of its own, and leaves to it: %q", function, found)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if inside := text(t, conn, `SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '') FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
		AND p.oid <> 'pglock.hint(text)'::regprocedure AND NOT p.prosecdef AND coalesce(p.proconfig::text, '') NOT LIKE '%search_path=%'
			AND has_function_privilege('pglock_user', p.oid, 'EXECUTE')`); inside != "" {
		t.Errorf("roles may call what relies on its caller's search_path: %s", inside)
	}
	if kept := text(t, conn, `SELECT has_function_privilege('public', 'pglock.hint(text)', 'EXECUTE')::text`); kept != "true" {
		t.Error("the application's own function is not everybody's any more")
	}
	if err := migrations.Down(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}
	if left := text(t, conn, `SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace`); left != "pglock.hint(text)" {
		t.Errorf("left after Down: %s", left)
	}
}
