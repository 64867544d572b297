package migrations_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/migrations"
)

func mustUp(t *testing.T, url string, opts ...migrations.Option) {
	t.Helper()
	if err := migrations.Up(t.Context(), url, opts...); err != nil {
		t.Fatalf("Up: %v", err)
	}
}

func mustDown(t *testing.T, url string, opts ...migrations.Option) {
	t.Helper()
	if err := migrations.Down(t.Context(), url, opts...); err != nil {
		t.Fatalf("Down: %v", err)
	}
}

// contents are those of a plain file.
func contents(t *testing.T, name string) string {
	t.Helper()
	all := must.Get(fs.ReadFile(migrations.Files(), name))(t)
	return string(all)
}

// tryApply runs a plain file as another tool would, in a schema that is there.
func tryApply(t *testing.T, conn *pgx.Conn, schema, name string) error {
	content, err := fs.ReadFile(migrations.Files(), name)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+pgx.Identifier{schema}.Sanitize()+", pg_temp;"+
			string(content), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// scan reads one row.
func scan(t *testing.T, conn *pgx.Conn, into []any, sql string, args ...any) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(into...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// text reads one text.
func text(t *testing.T, conn *pgx.Conn, sql string, args ...any) (s string) {
	t.Helper()
	scan(t, conn, []any{&s}, sql, args...)
	return s
}

// structure is the schema in every detail, but for what golang-migrate has in it.
func structure(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return text(t, conn, `
		WITH rels AS (SELECT c.* FROM pg_class c WHERE c.relnamespace = 'pglock'::regnamespace AND c.relname NOT LIKE 'pglock_schema_migrations%'),
		rights AS (
			SELECT 'relation ' || c.relname AS what, c.relacl AS acl FROM rels c
			UNION ALL SELECT 'function ' || p.oid::regprocedure, p.proacl FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
			UNION ALL SELECT 'schema', n.nspacl FROM pg_namespace n WHERE n.oid = 'pglock'::regnamespace)
		SELECT string_agg(x, E'\n' ORDER BY x) FROM (
			SELECT 'relation ' || c.relname || ' ' || c.relkind::text || ' ' || coalesce(c.reloptions::text, '') AS x FROM rels c
			UNION ALL SELECT 'column ' || c.relname || ' ' || row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum) || ' ' || a.attname || ' '
					|| format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || a.attidentity::text || ' ' || a.attcollation::regcollation
					|| ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
				FROM rels c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind = 'r'
				LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
			UNION ALL SELECT 'constraint ' || c.relname || ' ' || k.conname || ' ' || pg_get_constraintdef(k.oid) || k.convalidated
				FROM rels c JOIN pg_constraint k ON k.conrelid = c.oid
			UNION ALL SELECT 'index ' || pg_get_indexdef(c.oid) FROM rels c WHERE c.relkind = 'i'
			UNION ALL SELECT 'sequence ' || c.relname || ' ' || format_type(s.seqtypid, NULL) || ' ' || s.seqmin || ' ' || s.seqincrement || ' ' || s.seqcache || s.seqcycle
				FROM rels c JOIN pg_sequence s ON s.seqrelid = c.oid
			UNION ALL SELECT 'trigger ' || g.tgenabled::text || ' ' || CASE WHEN NOT g.tgisinternal THEN pg_get_triggerdef(g.oid) END
				FROM rels c JOIN pg_trigger g ON g.tgrelid = c.oid
			UNION ALL SELECT 'type ' || y.typname || ' ' || y.typtype::text FROM pg_type y WHERE y.typnamespace = 'pglock'::regnamespace
					AND y.typname !~ 'pglock_schema_migrations'
			UNION ALL SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
			UNION ALL SELECT 'right ' || r.what || ' ' || coalesce(e.grantee::regrole::text, '') || ' ' || e.privilege_type || e.is_grantable
				FROM rights r CROSS JOIN LATERAL aclexplode(r.acl) e
			UNION ALL SELECT 'no rights given ' || r.what FROM rights r WHERE r.acl IS NULL) everything`)
}

// firstDifference is where two texts part, for people.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d: got  %s\nwant %s", i+1, a, b)
		}
	}
	return ""
}
