package pglock_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// intruder is a mere user with a schema, who has put code wherever the server lets them: under the names of the
// server's functions and operators and of pglock's tables, and in casts, domains, defaults, rules, triggers and row
// security. All this code reports when it runs with somebody else's rights.
type intruder struct {
	owner
	robbed *atomic.Int64
	wires  string // a schema whose code breaks what would call it
	token  string // of the lock trap
}

const grantID = "70000000-0000-0000-0000-000000000000"

func newIntruder(t *testing.T, db *pgtest.DB) intruder {
	t.Helper()
	i := intruder{owner: newTableOwner(t, db, "pglock_user"), robbed: new(atomic.Int64)}
	config := i.pool.Config()
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if strings.HasPrefix(n.Message, "ran as ") {
			i.robbed.Add(1)
		}
	}
	pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	i.pool = pool
	i.do(t, `CREATE FUNCTION note() RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			IF current_user <> session_user THEN RAISE WARNING 'ran as %', current_user; END IF;
			RETURN true;
		END $$`)
	i.shadow(t, i.do, fmt.Sprintf("plpgsql AS $$ BEGIN PERFORM %s.note(); RETURN NULL; END $$", i.name), "CHECK ("+
		i.name+".note())")
	for _, table := range []string{"locks", "fences", "waiters", "sessions", "receipts", "installation", "events",
		"done_keys", "spent_grants", "described"} {
		i.do(t, fmt.Sprintf(`CREATE VIEW %[1]s.%[2]s AS SELECT %[1]s.note() AS name`, i.name, table))
	}
	// Code that cannot even be planned: a statement that would call it anywhere fails before it reads a row.
	i.wires = i.name + "_wires"
	conn := db.Conn(t)
	wire := func(t *testing.T, sql string) {
		t.Helper()
		execute(t, conn, "SET check_function_bodies = off; SET search_path = "+i.wires+";"+sql)
	}
	execute(t, conn, fmt.Sprintf("CREATE SCHEMA %s; GRANT USAGE ON SCHEMA %s TO PUBLIC", i.wires, i.wires))
	wire(t, "CREATE FUNCTION cut(text) RETURNS boolean LANGUAGE sql AS 'SELECT no_such_function()'")
	i.shadow(t, wire, "sql AS 'SELECT no_such_function()'", "CHECK ("+i.wires+".cut(VALUE::pg_catalog.text))")
	i.setTraps(t)
	i.token = i.texts(t, "SELECT token::text FROM pglock.acquire_lease('trap', '"+grantID+
		"', gen_random_uuid(), 'intruder', '1 h')")[0]
	return i
}

// shadow makes objects with the server's names: all that the functions of pglock call, every operator whose name
// their texts contain, for operands of any types, and the types that those name which fix no search_path.
func (i intruder) shadow(t *testing.T, make func(t *testing.T, sql string), body, check string) {
	t.Helper()
	shadows := i.texts(t,
		`SELECT DISTINCT format('CREATE FUNCTION %I(%s) RETURNS %s LANGUAGE ', c.proname, c.args, c.result) || '`+
			strings.ReplaceAll(body, "'", "''")+`'
		FROM (SELECT f.proname, pg_get_function_identity_arguments(f.oid) AS args, pg_get_function_result(f.oid) AS result FROM pg_proc f
			WHERE f.pronamespace = 'pg_catalog'::regnamespace AND f.prokind = 'f' AND NOT f.proretset AND f.provariadic = 0
				AND NOT EXISTS (SELECT FROM pg_type y WHERE y.oid = ANY (f.proargtypes::oid[] || f.prorettype) AND y.typtype = 'p')
				AND f.proname IN (SELECT m.called[1] FROM pg_proc p, regexp_matches(p.prosrc, '(\w+)\(', 'g') m (called)
					WHERE p.pronamespace = 'pglock'::regnamespace)) c`)
	operators := i.texts(t,
		`SELECT format('CREATE FUNCTION op_%s(%s) RETURNS %s LANGUAGE ', o.oid, concat_ws(', ', nullif(o.oprleft, 0)::regtype, o.oprright::regtype), o.oprresult::regtype)
			|| '`+strings.ReplaceAll(body, "'", "''")+
			`' || format('; CREATE OPERATOR %s (%s FUNCTION = op_%s)', o.oprname,
				CASE WHEN o.oprleft <> 0 THEN format('LEFTARG = %s, ', o.oprleft::regtype) ELSE '' END || format('RIGHTARG = %s,', o.oprright::regtype), o.oid)
		FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND 'record'::regtype NOT IN (o.oprleft, o.oprright)
			AND position(o.oprname IN (SELECT string_agg(p.prosrc, ' ') FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace)) > 0`)
	types := i.texts(t, `SELECT DISTINCT format('CREATE DOMAIN %I AS pg_catalog.%I `+check+`', y.typname, y.typname)
		FROM pg_type y JOIN pg_proc p ON p.pronamespace = 'pglock'::regnamespace AND p.proname IN ('acquire_lease', 'acquire_leases', 'release_lease', 'release_leases', 'fence_commit') AND p.prosrc ~ ('pg_catalog\.' || y.typname || '\M')
		WHERE y.typnamespace = 'pg_catalog'::regnamespace AND y.typtype = 'b'`)
	if len(shadows) < 50 || len(operators) < 500 || len(types) < 4 {
		t.Fatalf("%d functions, %d operators and %d types", len(shadows), len(operators), len(types))
	}
	for all := range slices.Chunk(slices.Concat(shadows, operators, types), 50) {
		make(t, strings.Join(all, ";"))
	}
}

// do runs statements in the intruder's schema.
func (i intruder) do(t *testing.T, sql string) {
	t.Helper()
	if err := i.try(t, i.name, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (i intruder) try(t *testing.T, path, sql string) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), i.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+path+";"+sql, pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

func (i intruder) texts(t *testing.T, sql string) (all []string) {
	t.Helper()
	must.Do(t, pgx.BeginFunc(t.Context(), i.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+i.name); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}))
	return all
}

// attack calls a function with every argument, and without one or all that have a default, while names are found in
// the intruder's schema first. For a trigger's function it makes triggers on tables full of the intruder's code, and
// writes to them. It returns what it has found: code of the intruder that ran with somebody else's rights, or would
// have been called.
func (i intruder) attack(t *testing.T, of definer, paths ...string) (found []string) {
	t.Helper()
	defer func() {
		if n := i.robbed.Swap(0); n != 0 {
			found = append(found, fmt.Sprintf("it ran code of its caller %d times with the rights of its owner", n))
		}
	}()
	if of.name == "fence_commit" { // it comes with every COMMIT of a fenced transaction
		for _, path := range paths {
			if err := i.try(t, path, "SELECT pglock.fence('trap', "+i.token+", '"+grantID+
				"', 'commit', true)"); err != nil {
				found = append(found, fmt.Sprintf("COMMIT looked in the intruder's schema: %v", err))
			}
			if err := i.try(t, path, "SET CONSTRAINTS ALL IMMEDIATE; SELECT pglock.fence('trap', "+i.token+", '"+
				grantID+"', 'early', true)"); err != nil {
				found = append(found, fmt.Sprintf("a check that comes early looked in the intruder's schema: %v", err))
			}
			id := uuid.NewString() // of a lease that ends before the COMMIT
			if err := i.try(t, path, "SELECT pglock.fence('released', a.token, '"+id+
				"') FROM pglock.acquire_lease('released', '"+id+"', '"+id+"', 'intruder', '1 h') a;"+
				"SELECT pglock.release_lease('released', l.token, '"+id+
				"') FROM pglock.get_lock('released') l"); sqlState(err) != "LK003" {
				found = append(found, fmt.Sprintf("COMMIT of a lease that was released: %v", err))
			}
		}
		return found
	}
	if of.trigger {
		ofTriggers := paths[:2]
		for _, table := range traps {
			for _, arguments := range []string{"", "'trap'", "'trap', 'k'", "'trap', 'note'", "'trap', 'to_jsonb'",
				"'trap', 'other'"} {
				if err := i.try(t, i.name, fmt.Sprintf("CREATE TRIGGER g AFTER INSERT OR UPDATE OR DELETE ON %s FOR "+
					"EACH ROW EXECUTE FUNCTION pglock.%s(%s)", table, of.name, arguments)); denied(err) {
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				for _, path := range ofTriggers {
					write := func(sql string) error {
						return i.try(t, path, "SELECT pglock.fence('trap', "+i.token+", '"+grantID+"', r.x, true)"+
							" FROM (VALUES ('trap'), ('trap/x'), ('trap/1')) AS r (x);"+fmt.Sprintf(sql, table))
					}
					if write("INSERT INTO %s DEFAULT VALUES") != nil {
						continue // there is no row for the others
					}
					_ = write("UPDATE %s SET k = k")
					_ = write("DELETE FROM %s")
				}
				i.do(t, "DROP TRIGGER g ON "+table)
				if i.robbed.Load() != 0 {
					return nil // once is enough
				}
			}
		}
		return nil
	}
	for _, path := range paths {
		if of.name == "release_lease" { // of a lease that is held
			id := uuid.NewString()
			if err := i.try(t, path, "SELECT pglock.release_lease('let go', a.token, '"+id+
				"') FROM pglock.acquire_lease('let go', '"+id+"', '"+id+"', 'intruder', '1 h') a"); err != nil {
				found = append(found, fmt.Sprintf("a release looked in the intruder's schema: %v", err))
			}
		}
		if of.name == "acquire_lease" { // of a lock that is free
			id := uuid.NewString()
			if err := i.try(t, path, "SELECT pglock.acquire_lease('"+id+"', '"+id+"', '"+id+
				"', 'intruder', '1 h')"); err != nil {
				found = append(found, fmt.Sprintf("a grant looked in the intruder's schema: %v", err))
			}
		}
		several := [][]string{of.required, of.all[:min(len(of.required)+1, len(of.all))], of.all}
		for _, arguments := range slices.CompactFunc(several, slices.Equal) {
			err := i.try(t, path, fmt.Sprintf("SELECT * FROM pglock.%s(%s)", of.name, strings.Join(arguments, ", ")))
			if slices.Contains([]string{"42883", "42703", "42P01", "42704", "42725", "42809"}, sqlState(err)) {
				found = append(found, fmt.Sprintf("it looked in the intruder's schema: %v", err))
			}
		}
	}
	return found
}

// traps are tables with the intruder's code in all places where a written row, or a column that is read, may meet it.
var traps = []string{"of_enum", "of_domain", "of_pair", "of_range", "of_text", "with_rule", "with_expressions"}

func (i intruder) setTraps(t *testing.T) {
	t.Helper()
	i.do(t, strings.ReplaceAll(`CREATE TYPE mood AS ENUM ('x');
		CREATE FUNCTION as_json(mood) RETURNS json LANGUAGE plpgsql AS $$ BEGIN PERFORM note(); RETURN '"x"'; END $$;
		CREATE FUNCTION as_text(mood) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM note(); RETURN 'x'; END $$;
		CREATE FUNCTION note(mood) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM note(); RETURN 'x'; END $$;
		CREATE CAST (mood AS json) WITH FUNCTION as_json(mood) AS IMPLICIT;
		CREATE CAST (mood AS text) WITH FUNCTION as_text(mood) AS IMPLICIT;
		CREATE DOMAIN word AS text CHECK (note());
		CREATE DOMAIN moody AS mood CHECK (note());
		CREATE TYPE pair AS (a int, b mood);
		CREATE TYPE span AS RANGE (subtype = text);
		CREATE TABLE of_enum (k mood DEFAULT 'x', other int);
		CREATE TABLE of_domain (k word DEFAULT 'x', other moody DEFAULT 'x');
		CREATE TABLE of_pair (k pair DEFAULT ROW(1, 'x'), other mood DEFAULT 'x');
		CREATE TABLE of_range (k span DEFAULT '[a,b)', other mood[] DEFAULT '{x}');
		CREATE TABLE of_text (k text DEFAULT note()::text, other int);
		CREATE FUNCTION note(of_text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM note(); RETURN 'x'; END $$;
		CREATE FUNCTION other_k(of_text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM note(); RETURN 'x'; END $$;
		CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM note(); RETURN NEW; END $$;
		CREATE TRIGGER a BEFORE INSERT OR UPDATE ON of_text FOR EACH ROW EXECUTE FUNCTION fire();
		CREATE TRIGGER z AFTER INSERT OR UPDATE OR DELETE ON of_text FOR EACH ROW EXECUTE FUNCTION fire();
		ALTER TABLE of_text ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
		CREATE POLICY p ON of_text USING (note()) WITH CHECK (note());
		CREATE TABLE with_rule (k int DEFAULT 1, other int);
		CREATE RULE r AS ON INSERT TO with_rule DO ALSO SELECT note();
		CREATE FUNCTION even(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM note(); RETURN 1; END $$;
		CREATE TABLE with_expressions (k int DEFAULT 1, other int GENERATED ALWAYS AS (even(1)) STORED, CHECK (even(k) = 1));
		CREATE INDEX ON with_expressions (even(k))`, "PERFORM note()", "PERFORM "+i.name+".note()"))
}

// definer is a function that runs with the rights of the schema's owner.
type definer struct {
	name          string
	trigger       bool
	all, required []string // arguments
}

// samples are arguments of each type that a function may take. Code could also come with types of the caller and with
// arguments of any type: there are none here.
var samples = map[string]string{
	"text": `'x'`, "uuid": `'` + grantID + `'`, "bigint": `1`, "integer": `1`, "interval": `'1 min'`, "boolean": `true`,
	"jsonb":                    `'{"a": 1}'`,
	"timestamp with time zone": `'2026-01-01 00:00+00'`, "text[]": `'{x}'`, "uuid[]": `'{` + grantID + `}'`,
	"bigint[]": `'{1}'`, "integer[]": `'{1}'`,
	"interval[]": `'{1 min}'`, "boolean[]": `'{true}'`, "timestamp with time zone[]": `'{2026-01-01 00:00+00}'`,
	"jsonb[]": `'{"{}"}'`,
}

func definers(t *testing.T, conn *pgx.Conn) (all []definer) {
	t.Helper()
	rows := must.Get(conn.Query(t.Context(),
		`SELECT p.proname, p.prorettype = 'trigger'::regtype, p.pronargs - p.pronargdefaults,
		ARRAY(SELECT a::regtype::text FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS u (a, n) ORDER BY n)
		FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace AND p.prosecdef ORDER BY 1`))(t)
	defer rows.Close()
	for rows.Next() {
		var d definer
		var required int
		var types []string
		must.Do(t, rows.Scan(&d.name, &d.trigger, &required, &types))
		for _, of := range types {
			sample, ok := samples[of]
			if !ok {
				t.Fatalf("%s takes %s: whose code does that bring?", d.name, of)
			}
			d.all = append(d.all, sample)
		}
		d.required = d.all[:required]
		all = append(all, d)
	}
	if err := rows.Err(); err != nil || len(all) < 30 {
		t.Fatalf("%d functions run with the owner's rights: %v", len(all), err)
	}
	return all
}

// betterMatches puts functions into the schema itself that fit better than those of the server, for what takes any
// number of arguments or arguments of any types. Nobody but the owner could: but if so, they are not called.
func (i intruder) betterMatches(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	var all []string
	add := func(name, arguments, result string) {
		all = append(all, fmt.Sprintf("CREATE FUNCTION pglock.%s(%s) RETURNS %s LANGUAGE plpgsql AS $$ BEGIN PERFORM "+
			"%s.note(); RETURN; END $$", name, arguments, result, i.name))
	}
	for _, of := range []string{"text", "uuid", "bigint", "int", "interval", "boolean", "jsonb", "timestamptz"} {
		add("unnest", of+"[]", "SETOF "+of)
		for _, f := range [][2]string{{"cardinality", of + "[]"}, {"array_position", of + "[], " + of},
			{"array_remove", of + "[], " + of}, {"array_to_string", of + "[], text"},
			{"array_to_string", of + "[], text, text"},
			{"array_fill", of + ", int[]"}, {"to_jsonb", of}, {"format", "text, " + of},
			{"format", "text, " + of + ", text"}, {"concat_ws", "text, text, " + of}, {"jsonb_build_array", of}} {
			add(f[0], f[1]+", OUT x text", "text")
		}
	}
	add("concat_ws", "text, bigint, bigint, int, bigint, bigint, OUT x text", "text") // what hint calls
	add("is_batch", "int, int, OUT x boolean", "boolean")
	add("is_batch", "int, int, int, int, OUT x boolean", "boolean")
	execute(t, conn, strings.Join(all, ";"))
}

// A call of a function that takes any number of arguments, or arguments of any types, can be beaten by a function that
// takes just these. So such a call names the schema of the server, and pglock itself has no such function.
func TestI5_NoCallCanBeTakenOverByABetterMatch(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	const open = `f.provariadic <> 0 OR EXISTS (SELECT FROM pg_type y WHERE y.oid = ANY (f.proargtypes::oid[]) AND y.typtype = 'p' AND y.typname LIKE 'any%')`
	texts := func(sql string) []string {
		t.Helper()
		rows := must.Get(conn.Query(t.Context(), sql))(t)
		all := must.Get(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
		return all
	}
	names := texts(`SELECT DISTINCT f.proname FROM pg_proc f WHERE f.pronamespace = 'pg_catalog'::regnamespace AND (` +
		open + `)`)
	calls := regexp.MustCompile(`(^|\.\.|[^.\w])(` + strings.Join(names, "|") + `)\(`)
	constants := regexp.MustCompile(`'[^']*'`)
	several := regexp.MustCompile(`unnest\((?:[^()]|\([^()]*\))*,`) // which the language itself knows
	look := func() string {
		t.Helper()
		var found []string
		for _, source := range texts(`SELECT p.proname || ': ' || p.prosrc FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace ORDER BY 1`) {
			function, source, _ := strings.Cut(source, ": ")
			source = several.ReplaceAllString(constants.ReplaceAllStringFunc(source, func(c string) string {
				return strings.ReplaceAll(c, ",", ";")
			}), "several(")
			for rest := source; ; {
				at := calls.FindStringSubmatchIndex(rest)
				if at == nil {
					break
				}
				found = append(found, function+" calls "+rest[at[4]:at[5]])
				rest = rest[at[5]:]
			}
		}
		return strings.Join(found, ", ")
	}
	if found := look(); found != "" {
		t.Errorf("without pg_catalog (add the name to internal/dev/migrationgen): %s", found)
	}
	if own := texts(`SELECT f.oid::regprocedure::text FROM pg_proc f WHERE f.pronamespace = 'pglock'::regnamespace AND (` + open + `)`); len(own) != 0 {
		t.Errorf("functions of pglock for any arguments: %s", own)
	}
	execute(t, conn, `CREATE FUNCTION pglock.careless(p text[]) RETURNS int LANGUAGE sql AS 'SELECT cardinality(p)'`)
	if found := look(); found != "careless calls cardinality" {
		t.Errorf("of a careless function this sees %q", found)
	}
}

// No function that runs with the rights of the schema's owner runs code that its caller brings.
func TestI5_NoFunctionLendsItsRightsToCodeOfItsCaller(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	i := newIntruder(t, db)
	all := definers(t, conn)
	i.betterMatches(t, conn)
	wired := i.wires + ", pg_temp, pg_catalog"
	paths := []string{i.name + ", pg_temp, pg_catalog", "pg_temp, " + i.name + ", pg_catalog", "pglock, " + i.name,
		wired}
	for _, d := range all {
		for _, found := range i.attack(t, d, paths...) {
			t.Errorf("%s: %s", d.name, found)
		}
	}
	// The attacks see what they look for.
	execute(t, conn,
		`CREATE FUNCTION pglock.careless(p text) RETURNS timestamptz LANGUAGE sql VOLATILE SECURITY DEFINER AS 'SELECT clock_timestamp()';
		CREATE FUNCTION pglock.careless_trigger() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pglock, pg_temp AS $$
			BEGIN EXECUTE format('SELECT ($1).%I::text', coalesce(TG_ARGV[1], 'k')) USING NEW; RETURN NULL; END $$;
		GRANT EXECUTE ON FUNCTION pglock.careless, pglock.careless_trigger TO pglock_user`)
	for _, d := range []definer{{name: "careless", all: []string{"'x'"}, required: []string{"'x'"}},
		{name: "careless_trigger", trigger: true}} {
		if len(i.attack(t, d, paths...)) == 0 {
			t.Errorf("nothing was seen of %s", d.name)
		}
	}
	// And in three of the functions that fix no search_path: qualified names, as if they were left to their caller. The
	// long tier has each of them.
	for _, d := range all {
		if d.name != "acquire_lease" && d.name != "release_lease" && d.name != "fence_commit" {
			continue
		}
		var text, definition string
		if err := conn.QueryRow(t.Context(),
			`SELECT prosrc, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND proname = $1`, d.name).Scan(&text, &definition); err != nil {
			t.Fatal(err)
		}
		places := qualifications.FindAllStringSubmatchIndex(text, -1)
		if len(places) < 10 {
			t.Fatalf("%d places in %s", len(places), d.name)
		}
		for n, at := range places {
			if !pgtest.LargeLoads && n%(len(places)/3) != 1 {
				continue
			}
			careless := text[:at[0]]
			if at[2] >= 0 {
				careless += text[at[2]:at[3]] // the operator
			}
			careless += text[at[1]:]
			execute(t, conn, "SET check_function_bodies = off;"+strings.Replace(definition, text, careless, 1))
			if len(i.attack(t, d, wired)) == 0 {
				t.Errorf("nothing was seen of %s without what is at %.60q", d.name, text[at[0]:])
			}
		}
		execute(t, conn, definition)
	}
}

var qualifications = regexp.MustCompile(`OPERATOR\(pg_catalog\.([^)]+)\)|pg_catalog\.|pglock\.`)
