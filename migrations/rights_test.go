package migrations_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// Only the two roles may do anything with the schema, and only through the functions granted to them. An
// application's function in a shared schema keeps its rights.
func TestMigrationGivesNobodyMoreRightsThanTheyNeed(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE SCHEMA pglock; CREATE FUNCTION pglock.hint(text) RETURNS int LANGUAGE sql AS 'SELECT 1'")
	mustUp(t, db.URL())
	if open := text(t, conn,
		`SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '') FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
		AND p.oid <> 'pglock.hint(text)'::regprocedure AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0))`); open != "" {
		t.Errorf("everybody may call %s", open)
	}
	if open := text(t, conn,
		`SELECT coalesce(string_agg(c.relname, ', '), '') FROM pg_class c CROSS JOIN unnest('{pglock_user,pglock_admin,public}'::text[]) r
		WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind IN ('r', 'v')
			AND has_table_privilege(r, c.oid, 'SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER')`); open != "" {
		t.Errorf("tables or views that a role may touch: %s", open)
	}
	// A function with the rights of the schema's owner fixes its search_path, or leaves nothing to it. The others are
	// for callers that have fixed it.
	rows := must.Get(conn.Query(t.Context(),
		`SELECT p.oid::regprocedure::text, p.prosrc FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
		AND p.prosecdef AND coalesce(p.proconfig::text, '') !~ 'search_path=[^,]*pglock[^,]*, pg_temp"'`))(t)
	loose := regexp.MustCompile(`\.(acquire_leases?|release_leases?|fence|fence_all|fence_commit|seal|once|guard_write)\(`)
	var function, source string
	if _, err := pgx.ForEachRow(rows, []any{&function, &source}, func() error {
		if found := pgtest.Unqualified(source, "pglock"); len(found) > 0 || !loose.MatchString(function) {
			t.Errorf("%s has no search_path of its own, and leaves to it: %q", function, found)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if inside := text(t, conn,
		`SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '') FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
		AND p.oid <> 'pglock.hint(text)'::regprocedure AND NOT p.prosecdef AND coalesce(p.proconfig::text, '') NOT LIKE '%search_path=%'
			AND has_function_privilege('pglock_user', p.oid, 'EXECUTE')`); inside != "" {
		t.Errorf("roles may call what relies on its caller's search_path: %s", inside)
	}
	if kept := text(t, conn,
		`SELECT has_function_privilege('public', 'pglock.hint(text)', 'EXECUTE')::text`); kept != "true" {
		t.Error("the application's own function is not everybody's any more")
	}
	mustDown(t, db.URL())
	if left := text(t, conn,
		`SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace`); left != "pglock.hint(text)" {
		t.Errorf("left after Down: %s", left)
	}
}

// newRole makes a role that is gone after the test.
func newRole(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	role := "Role " + strings.ReplaceAll(uuid.NewString(), "-", "")
	quoted := pgx.Identifier{role}.Sanitize()
	execute(t, conn, "CREATE ROLE "+quoted)
	t.Cleanup(func() {
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+quoted+" CASCADE; DROP ROLE "+
			quoted); err != nil {
			t.Errorf("drop the test's role: %v", err)
		}
	})
	return quoted
}

// strangers are the rights on objects of the schema that go beyond those of their owner and of the two roles: of all
// kinds of objects and columns, but for what is named app_….
const strangers = `
	WITH here AS (SELECT oid FROM pg_namespace WHERE nspname = 'pglock'), rights AS (
		SELECT c.relname::text AS name, c.relowner AS owner, a.* FROM pg_class c, aclexplode(c.relacl) a WHERE c.relnamespace = (SELECT oid FROM here)
		UNION ALL SELECT c.relname || '.' || b.attname, c.relowner, a.* FROM pg_class c JOIN pg_attribute b ON b.attrelid = c.oid, aclexplode(b.attacl) a WHERE c.relnamespace = (SELECT oid FROM here)
		UNION ALL SELECT p.proname, p.proowner, a.* FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE p.pronamespace = (SELECT oid FROM here)
		UNION ALL SELECT y.typname, y.typowner, a.* FROM pg_type y LEFT JOIN pg_class c ON c.oid = y.typrelid, aclexplode(coalesce(y.typacl, acldefault('T', y.typowner))) a
			WHERE y.typnamespace = (SELECT oid FROM here) AND y.typelem = 0 AND coalesce(c.relkind = 'c', true)
		UNION ALL SELECT 'schema', n.nspowner, a.* FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.oid = (SELECT oid FROM here))
	SELECT coalesce(string_agg(DISTINCT name || ': ' || privilege_type || ' for ' || grantee::regrole || CASE WHEN is_grantable THEN ' with grant option' ELSE '' END, ', '), '') FROM rights
	WHERE grantee <> owner AND name NOT LIKE 'app%'
		AND NOT (grantee IN ('pglock_user'::regrole, 'pglock_admin'::regrole) AND privilege_type IN ('EXECUTE', 'USAGE') AND NOT is_grantable)`

// What ALTER DEFAULT PRIVILEGES gives to every new object, the migration takes back, whoever has it. What was in the
// schema before keeps its rights.
func TestI5_DefaultPrivilegesGiveNobodyARightOnTheSchema(t *testing.T) {
	t.Parallel()
	for way, up := range map[string]func(t *testing.T, db *pgtest.DB, conn *pgx.Conn) error{
		"Up": func(t *testing.T, db *pgtest.DB, _ *pgx.Conn) error { return migrations.Up(t.Context(), db.URL()) },
		"Up in a schema that is there": func(t *testing.T, db *pgtest.DB, conn *pgx.Conn) error {
			execute(t, conn, "CREATE SCHEMA pglock; CREATE TABLE pglock.app (id int); CREATE SEQUENCE pglock.app_s; "+
				"CREATE FUNCTION pglock.app_f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE pglock.app_t "+
				"AS (a int)")
			dismiss(t, conn)
			return migrations.Up(t.Context(), db.URL())
		},
		"the plain file": func(t *testing.T, _ *pgtest.DB, conn *pgx.Conn) error {
			execute(t, conn, "CREATE SCHEMA pglock")
			dismiss(t, conn)
			return tryApply(t, conn, "pglock", "000001_pglock.up.sql")
		},
	} {
		for to, option := range map[string]string{"PUBLIC": "", "a role": " WITH GRANT OPTION"} {
			if !pgtest.EveryTest && (to == "PUBLIC") == (way == "the plain file") {
				continue // in the short tier each way with one grantee
			}
			t.Run(way+"/"+to, func(t *testing.T) {
				db := pgtest.EmptyParallel(t)
				conn := db.Conn(t)
				if to != "PUBLIC" {
					to = newRole(t, conn)
				}
				for _, kind := range []string{"TABLES", "SEQUENCES", "ROUTINES", "TYPES", "SCHEMAS"} {
					execute(t, conn, fmt.Sprintf("ALTER DEFAULT PRIVILEGES GRANT ALL ON %s TO %s%s", kind, to, option))
				}
				must.Do(t, up(t, db, conn))
				found := text(t, conn, strangers)
				if way == "Up in a schema that is there" { // which others use
					found = regexp.MustCompile(`(^|, )schema: USAGE for [^,]*$`).ReplaceAllString(found, "")
				}
				if found != "" {
					t.Errorf("rights that nobody needs: %s", found)
				}
				if found := text(t, conn,
					`SELECT coalesce(string_agg(item || ': ' || meaning, '; '), '') FROM pglock.diagnose() WHERE item LIKE 'rights%' AND NOT ok`); found != "" {
					t.Errorf("doctor says %s", found)
				}
				if way == "Up in a schema that is there" {
					grantee := strings.Replace(to, "PUBLIC", "-", 1)
					if kept := text(t, conn,
						`SELECT count(*)::text FROM pg_class c, aclexplode(c.relacl) a WHERE c.relname IN ('app', 'app_s') AND a.grantee::regrole::text = $1 AND a.privilege_type = 'SELECT'`, grantee) +
						text(t, conn,
							`SELECT count(*)::text FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE p.proname = 'app_f' AND a.grantee::regrole::text = $1`, grantee); kept != "21" {
						t.Errorf("rights on the application's own objects: %s, want 21", kept)
					}
				}
			})
		}
	}
}

// dismiss takes from everybody but the owner the right to make objects in the schema.
func dismiss(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	execute(t, conn, `DO $$ DECLARE r record; BEGIN
		FOR r IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS who FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'pglock' AND a.grantee <> n.nspowner LOOP
			EXECUTE 'REVOKE CREATE ON SCHEMA pglock FROM ' || r.who || ' CASCADE';
		END LOOP;
	END $$`)
}

// Whatever right is given or taken later, doctor names the object, whose right it is, and the statement that mends it.
func TestDoctorNamesEachRightThatIsWrongAndWhatMendsIt(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"pglock", `We"ird Schema.x`} {
		if !pgtest.Among(schema, `We"ird Schema.x`) {
			continue
		}
		t.Run(schema, func(t *testing.T) {
			db := pgtest.EmptyParallel(t)
			conn := db.Conn(t)
			role, other := newRole(t, conn), newRole(t, conn)
			mustUp(t, db.URL(), migrations.WithSchema(schema))
			quoted := text(t, conn, `SELECT quote_ident($1)`, schema)
			here := func(sql string) string {
				return strings.NewReplacer("T_SCHEMA", quoted, "T_ROLE", role, "T_OTHER", other, "T_OWNER",
					text(t, conn, `SELECT quote_ident(current_user)`)).Replace(sql)
			}
			// of all that is wrong: object | grantee | privileges | mend
			wrong := func() string {
				t.Helper()
				return text(t, conn,
					here(`SELECT coalesce(string_agg(concat_ws(' | ', object, CASE WHEN lacks THEN grantee || ' lacks' ELSE grantee END, privileges, mend), E'\n'), '') FROM T_SCHEMA.wrong_rights()`))
			}
			doctor := func() string {
				t.Helper()
				return text(t, conn,
					here(`SELECT string_agg(concat_ws(' | ', item, ok, value, meaning), E'\n') FROM T_SCHEMA.diagnose() WHERE item LIKE 'rights%'`))
			}
			if found := doctor(); !strings.HasPrefix(found, "rights | t | as they must be") {
				t.Fatalf("after the migration: %s", found)
			}
			if drawn := text(t, conn, here(
				`SELECT value FROM T_SCHEMA.diagnose() WHERE item = 'tokens'`)); drawn != "0 drawn, 0 granted" {
				t.Errorf("before the first token doctor says %s", drawn)
			}
			cases := []struct{ sql, says string }{
				{`GRANT SELECT, UPDATE ON T_SCHEMA.locks TO T_ROLE`,
					`table T_SCHEMA.locks | T_ROLE | SELECT, UPDATE | REVOKE SELECT, UPDATE ON TABLE T_SCHEMA.locks FROM T_ROLE CASCADE`},
				{`GRANT SELECT (grant_id) ON T_SCHEMA.fences TO PUBLIC`,
					`table T_SCHEMA.fences | PUBLIC | SELECT (grant_id) | REVOKE SELECT (grant_id) ON TABLE T_SCHEMA.fences FROM PUBLIC CASCADE`},
				{`GRANT TRIGGER ON T_SCHEMA.fences TO pglock_user`, `table T_SCHEMA.fences | pglock_user | TRIGGER | `},
				{`GRANT SELECT ON T_SCHEMA.described TO pglock_admin`,
					`table T_SCHEMA.described | pglock_admin | SELECT | `},
				{`GRANT USAGE ON SEQUENCE T_SCHEMA.fencing_token_seq TO PUBLIC`,
					`sequence T_SCHEMA.fencing_token_seq | PUBLIC | USAGE | REVOKE USAGE ON SEQUENCE T_SCHEMA.fencing_token_seq FROM PUBLIC CASCADE`},
				{`GRANT SELECT ON T_SCHEMA.events_id_seq TO T_ROLE`,
					`sequence T_SCHEMA.events_id_seq | T_ROLE | SELECT | `},
				{`GRANT EXECUTE ON FUNCTION T_SCHEMA.break_lock TO pglock_user`, `function T_SCHEMA.break_lock(`},
				{`GRANT EXECUTE ON FUNCTION T_SCHEMA.settle TO PUBLIC`,
					`function T_SCHEMA.settle(pg_catalog.text) | PUBLIC | EXECUTE | REVOKE EXECUTE ON FUNCTION T_SCHEMA.settle(pg_catalog.text) FROM PUBLIC CASCADE`},
				{`GRANT EXECUTE ON FUNCTION T_SCHEMA.sweep TO T_ROLE WITH GRANT OPTION`, `| T_ROLE | EXECUTE | `},
				{`GRANT EXECUTE ON FUNCTION T_SCHEMA.sweep TO pglock_user WITH GRANT OPTION`,
					`pglock_user | EXECUTE | REVOKE GRANT OPTION FOR EXECUTE ON FUNCTION T_SCHEMA.sweep(`},
				{`GRANT USAGE ON TYPE T_SCHEMA.tenure TO PUBLIC`,
					`type T_SCHEMA.tenure | PUBLIC | USAGE | REVOKE USAGE ON TYPE T_SCHEMA.tenure FROM PUBLIC CASCADE`},
				{`GRANT ALL ON T_SCHEMA.pglock_schema_migrations TO T_ROLE`,
					`table T_SCHEMA.pglock_schema_migrations | T_ROLE | DELETE, INSERT, `},
				{`GRANT USAGE ON SCHEMA T_SCHEMA TO PUBLIC`,
					`schema T_SCHEMA | PUBLIC | USAGE | REVOKE USAGE ON SCHEMA T_SCHEMA FROM PUBLIC CASCADE`},
				{`GRANT CREATE ON SCHEMA T_SCHEMA TO T_ROLE`, `schema T_SCHEMA | T_ROLE | CREATE | `},
				{`GRANT SELECT ON T_SCHEMA.locks TO T_ROLE WITH GRANT OPTION; GRANT USAGE ON SCHEMA T_SCHEMA TO T_ROLE; SET ROLE T_ROLE; GRANT SELECT ON T_SCHEMA.locks TO T_OTHER; RESET ROLE`, `table T_SCHEMA.locks | T_OTHER | SELECT | `},
				{`REVOKE EXECUTE ON FUNCTION T_SCHEMA.acquire_lease FROM pglock_user`,
					`pglock_user lacks | EXECUTE | GRANT EXECUTE ON FUNCTION T_SCHEMA.acquire_lease(`},
				{`REVOKE USAGE ON SCHEMA T_SCHEMA FROM pglock_admin`,
					`schema T_SCHEMA | pglock_admin lacks | USAGE | GRANT USAGE ON SCHEMA T_SCHEMA TO pglock_admin`},
				{`REVOKE UPDATE ON T_SCHEMA.locks FROM T_OWNER`, `table T_SCHEMA.locks | T_OWNER lacks | UPDATE | `},
				{`ALTER TABLE T_SCHEMA.receipts OWNER TO T_ROLE`,
					`table T_SCHEMA.receipts | T_ROLE | ownership | ALTER TABLE T_SCHEMA.receipts OWNER TO T_OWNER`},
			}
			change := func(sql string) {
				t.Helper()
				execute(t, conn, here("SET search_path = ''; "+sql+"; RESET search_path"))
			}
			mend := func() {
				t.Helper()
				change(text(t, conn, here(`SELECT string_agg(mend, ';') FROM T_SCHEMA.wrong_rights()`)))
				if found := wrong(); found != "" {
					t.Fatalf("after what mends it: %s", found)
				}
			}
			for _, c := range cases {
				change(c.sql)
			}
			found := wrong()
			for _, c := range cases {
				if !strings.Contains(found, here(c.says)) {
					t.Errorf("%s: no %s in\n%s", here(c.sql), here(c.says), found)
				}
			}
			mend()
			change(`GRANT SELECT ON T_SCHEMA.locks TO T_ROLE; REVOKE EXECUTE ON FUNCTION T_SCHEMA.sweep FROM pglock_user`)
			if found := doctor(); !strings.Contains(found,
				here("rights on table T_SCHEMA.locks | f | T_ROLE has SELECT | It must not have this right: REVOKE "+
					"SELECT ON TABLE T_SCHEMA.locks FROM T_ROLE CASCADE.")) ||
				!strings.Contains(found, " | f | pglock_user lacks EXECUTE | What needs this right fails: GRANT "+
					"EXECUTE ON FUNCTION ") || strings.Count(found, "\n") != 1 {
				t.Errorf("doctor says %s", found)
			}
			mend()
			change(`GRANT ALL ON ALL TABLES IN SCHEMA T_SCHEMA TO T_ROLE; GRANT ALL ON ALL FUNCTIONS IN SCHEMA T_SCHEMA TO T_ROLE`)
			if found := doctor(); strings.Count(found, "\n") != 10 ||
				!strings.Contains(found,
					" more are wrong | See object, grantee, privileges and mend of wrong_rights().") {
				t.Errorf("doctor says %s", found)
			}
			mend()
			// To let a role of one's own call some of what every user may call is no mistake.
			change(`REVOKE ALL ON ALL FUNCTIONS IN SCHEMA T_SCHEMA FROM T_ROLE; GRANT USAGE ON SCHEMA T_SCHEMA TO T_ROLE; GRANT EXECUTE ON FUNCTION T_SCHEMA.get_lock, T_SCHEMA.list_locks TO T_ROLE`)
			if found := wrong(); found != "" {
				t.Errorf("of a role that may look doctor says %s", found)
			}
			if found := doctor(); !strings.HasPrefix(found, "rights | t | as they must be") ||
				!strings.HasSuffix(found, here("some of those of pglock_user also others: T_ROLE (2).")) {
				t.Errorf("of a role that may look doctor says %s", found)
			}
			// What the application has in the schema is its own affair, and then others may use the schema.
			execute(t, conn,
				here(`CREATE TABLE T_SCHEMA.app (id int); GRANT ALL ON T_SCHEMA.app TO PUBLIC; CREATE FUNCTION T_SCHEMA.hint(text) RETURNS int LANGUAGE sql AS 'SELECT 1'; GRANT USAGE ON SCHEMA T_SCHEMA TO PUBLIC`))
			if found := wrong(); found != "" {
				t.Errorf("of the application's own objects doctor says %s", found)
			}
		})
	}
}

// Row security that holds for the owner of the functions, too, would hide rows from them.
func TestDoctorNamesRowSecurityThatHoldsForTheOwner(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	owner := newRole(t, conn)
	mustUp(t, db.URL(), migrations.WithSchema("other")) // makes the roles
	execute(t, conn, "CREATE SCHEMA pglock AUTHORIZATION "+owner+"; SET ROLE "+owner)
	t.Cleanup(func() {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), "RESET ROLE")
		must.Note(t, err)
	})
	must.Do(t, tryApply(t, conn, "pglock", "000001_pglock.up.sql"))
	doctor := func() string {
		t.Helper()
		return text(t, conn, `SELECT string_agg(concat_ws(' | ', item, ok, value, meaning), E'\n') FROM pglock.diagnose()
			WHERE item LIKE 'rights%'`)
	}
	whole := doctor()
	execute(t, conn, "ALTER TABLE pglock.locks ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
	if found, want := doctor(), "rights on table pglock.locks | f | "+owner+" lacks what row security hides | What "+
		"needs this right fails: ALTER TABLE pglock.locks NO FORCE ROW LEVEL SECURITY."; found != want {
		t.Errorf("doctor says %s, want %s", found, want)
	}
	execute(t, conn, text(t, conn, "SELECT string_agg(mend, ';') FROM pglock.wrong_rights()"))
	if found := doctor(); found != whole {
		t.Errorf("after what mends it doctor says %s, before it was %s", found, whole)
	}
}

// Whoever can put code where the functions look for the server's own would have the rights of their owner. Up refuses
// such a schema, Check says so before, and the plain file refuses it too.
func TestI5_UpRefusesASchemaInWhichOthersHaveCodeOrMayMakeIt(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		schema, sql string // T_ROLE is another role, T_ME who migrates
		says, mend  string // nothing: it is not refused
	}{
		"PUBLIC may create, as in public of PostgreSQL 14": {"public", `GRANT CREATE ON SCHEMA public TO PUBLIC`,
			`lets PUBLIC make objects`, `REVOKE CREATE ON SCHEMA public FROM PUBLIC CASCADE;`},
		"a role may create": {`We"ird Schema.x`,
			`CREATE SCHEMA T_SCHEMA; GRANT CREATE ON SCHEMA T_SCHEMA TO T_ROLE`, `lets T_ROLE make objects`,
			`REVOKE CREATE ON SCHEMA T_SCHEMA FROM T_ROLE CASCADE;`},
		"another owner": {"pglock", `CREATE SCHEMA T_SCHEMA AUTHORIZATION T_ROLE`, `belongs to T_ROLE`,
			`SET ROLE T_ROLE; or ALTER SCHEMA T_SCHEMA OWNER TO T_ME;`},
		"a function of another": {"pglock",
			`CREATE SCHEMA T_SCHEMA; CREATE FUNCTION T_SCHEMA.concat_ws(text, bigint, bigint, int, bigint, bigint) RETURNS text LANGUAGE sql AS 'SELECT NULL'; ALTER FUNCTION T_SCHEMA.concat_ws(text, bigint, bigint, int, bigint, bigint) OWNER TO T_ROLE`, `has T_SCHEMA.concat_ws(text,bigint,bigint,integer,bigint,bigint), which belongs to T_ROLE`, `DROP ROUTINE T_SCHEMA.concat_ws(text,bigint,bigint,integer,bigint,bigint);`},
		"an operator of another": {"pglock",
			`CREATE SCHEMA T_SCHEMA; CREATE FUNCTION T_SCHEMA.f(interval, numeric) RETURNS interval LANGUAGE sql AS 'SELECT $1'; CREATE OPERATOR T_SCHEMA.* (LEFTARG = interval, RIGHTARG = numeric, FUNCTION = T_SCHEMA.f); ALTER OPERATOR T_SCHEMA.* (interval, numeric) OWNER TO T_ROLE`, `which belongs to T_ROLE`, `DROP OPERATOR T_SCHEMA.*(interval,numeric);`},
		"another owner, with functions that run": {"pglock", `CREATE SCHEMA T_SCHEMA AUTHORIZATION T_ROLE; ` +
			strangersFunctions, `made by another migration tool`, `continue with that tool`},
		"a view of another as the table": {"pglock", `CREATE SCHEMA T_SCHEMA; ` + strangersView,
			`has T_SCHEMA.pglock_schema_migrations, which belongs to T_ROLE`,
			`DROP VIEW T_SCHEMA.pglock_schema_migrations;`},
		"a table of another with a trigger and an index": {"pglock", `CREATE SCHEMA T_SCHEMA; ` + strangersTable,
			`has T_SCHEMA.pglock_schema_migrations, which belongs to T_ROLE`,
			`DROP TABLE T_SCHEMA.pglock_schema_migrations;`},
		"public, where nobody may": {"public", `REVOKE CREATE ON SCHEMA public FROM PUBLIC`, "", ""},
		"a role that is the owner": {"pglock",
			`GRANT T_ME TO T_ROLE; CREATE SCHEMA T_SCHEMA AUTHORIZATION T_ROLE; GRANT ALL ON SCHEMA T_SCHEMA TO T_ME`,
			"", ""},
		"code of the owner's own": {"pglock",
			`CREATE SCHEMA T_SCHEMA; CREATE FUNCTION T_SCHEMA.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'`, "", ""},
		"a database of another": {"public",
			`REVOKE CREATE ON SCHEMA public FROM PUBLIC; ALTER SCHEMA public OWNER TO pg_database_owner; ALTER DATABASE T_DATABASE OWNER TO T_ROLE`, `schema public belongs to pg_database_owner`, `ALTER SCHEMA public OWNER TO T_ME;`},
		"a database of one's own": {"public",
			`REVOKE CREATE ON SCHEMA public FROM PUBLIC; ALTER SCHEMA public OWNER TO pg_database_owner; ALTER DATABASE T_DATABASE SET quote_all_identifiers = on`, "", ""},
	} {
		if !pgtest.Among(what, "a role may create", "another owner", "a function of another",
			"code of the owner's own", "another owner, with functions that run", "a view of another as the table",
			"a table of another with a trigger and an index") {
			continue
		}
		t.Run(what, func(t *testing.T) {
			db := pgtest.EmptyParallel(t)
			conn := db.Conn(t)
			here := strings.NewReplacer("T_SCHEMA", text(t, conn, `SELECT quote_ident($1)`, c.schema), "T_ROLE",
				newRole(t, conn), "T_ME", text(t, conn, `SELECT quote_ident(current_user)`),
				"T_DATABASE", pgx.Identifier{db.Name()}.Sanitize()).Replace
			t.Cleanup(func() { // so that the role may go
				if _, err := conn.Exec(context.WithoutCancel(t.Context()),
					here("ALTER DATABASE T_DATABASE OWNER TO T_ME")); err != nil {
					t.Error(err)
				}
			})
			execute(t, conn, here(ran+c.sql))
			execute(t, conn, "SELECT setval('public.ran', 1, false)")
			before := catalog(t, conn, false)
			o := migrations.WithSchema(c.schema)
			refuses := func(way string, err error) {
				t.Helper()
				if c.says == "" {
					if err != nil {
						t.Errorf("%s: %v", way, err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), here(c.says)) ||
					!strings.Contains(err.Error(), here(c.mend)) {
					t.Errorf("%s: %v\nwant %s and %s", way, err, here(c.says), here(c.mend))
				}
				if after := catalog(t, conn, false); after != before {
					t.Errorf("%s has changed: %s", way, firstDifference(after, before))
				}
			}
			refuses("Check", migrations.Check(t.Context(), db.URL(), o))
			refuses("Up", migrations.Up(t.Context(), db.URL(), o))
			if text(t, conn, `SELECT is_called::text FROM public.ran`) != "false" {
				t.Error("code of another has run with the rights of whoever migrates")
			}
			if c.says == "" {
				if found := text(t, conn,
					here(`SELECT coalesce(string_agg(object || ' ' || mend, '; '), '') FROM T_SCHEMA.wrong_rights()`)); found != "" {
					t.Errorf("afterwards doctor says %s", found)
				}
			}
		})
	}
}
