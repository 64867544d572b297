package fencedstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestI11_GuardTableRefusesBadInputAndChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t,
		`CREATE TABLE accounts (id int, a_key_column_of_a_name_that_is_long int, at timestamptz); CREATE TABLE times (at timestamptz);
		CREATE VIEW v AS SELECT 1 AS id; CREATE MATERIALIZED VIEW m AS SELECT 1 AS id;
		CREATE SEQUENCE s; CREATE INDEX i ON accounts (id); CREATE TYPE y AS (id int)`)
	var none *pgxpool.Pool
	resource, key, schema := fencedstore.WithTableResource, fencedstore.WithTableKey, fencedstore.WithSchema
	for what, c := range map[string]struct {
		db    fencedstore.DB
		table string
		opt   fencedstore.TableOption
		is    error
		says  string
	}{
		"no db":              {nil, "accounts", resource("r"), pglock.ErrInvalid, "db is nil"},
		"nil pool":           {none, "accounts", resource("r"), pglock.ErrInvalid, "db is nil"},
		"nil connection":     {(*pgx.Conn)(nil), "accounts", resource("r"), pglock.ErrInvalid, "db is nil"},
		"nil transaction":    {(*pgxpool.Tx)(nil), "accounts", resource("r"), pglock.ErrInvalid, "db is nil"},
		"no table":           {b.pool, "", resource("r"), pglock.ErrInvalid, "table"},
		"nil option":         {b.pool, "accounts", nil, pglock.ErrInvalid, "option is nil"},
		"empty resource":     {b.pool, "accounts", resource(""), pglock.ErrInvalid, "resource is empty"},
		"long resource":      {b.pool, "accounts", resource(strings.Repeat("x", 513)), pglock.ErrInvalid, "513"},
		"resource with NUL":  {b.pool, "accounts", resource("a\x00"), pglock.ErrInvalid, "NUL"},
		"resource not UTF-8": {b.pool, "accounts", resource("a\xff"), pglock.ErrInvalid, "UTF-8"},
		"empty key":          {b.pool, "accounts", key(""), pglock.ErrInvalid, "key"},
		"missing key": {b.pool, "accounts", key("nosuch"), pglock.ErrInvalid,
			"no such column, but its key can be id, a_key_column_of_a_name_that_is_long"},
		"no column can be key": {b.pool, "times", key("id"), pglock.ErrInvalid, "no such column, and none that can " +
			"be a key"},
		"key in another case":   {b.pool, "accounts", key("ID"), pglock.ErrInvalid, "no such column"},
		"system column":         {b.pool, "accounts", key("ctid"), pglock.ErrInvalid, "no such column"},
		"key of another type":   {b.pool, "accounts", key("at"), pglock.ErrInvalid, "timestamp with time zone"},
		"key with NUL":          {b.pool, "accounts", key("a\x00"), pglock.ErrInvalid, ""},
		"empty schema":          {b.pool, "accounts", schema(""), pglock.ErrInvalid, "schema"},
		"schema without pglock": {b.pool, "accounts", schema("public"), pglock.ErrSchema, "migrate up"},
		"missing schema":        {b.pool, "accounts", schema("nosuch"), pglock.ErrSchema, "migrate up"},
		"missing table":         {b.pool, "nosuch", resource("r"), pglock.ErrInvalid, "nosuch"},
		"table of no schema":    {b.pool, "nosuch.accounts", resource("r"), pglock.ErrInvalid, "nosuch"},
		"table in another case": {b.pool, `"Accounts"`, resource("r"), pglock.ErrInvalid, "Accounts"},
		"number":                {b.pool, "4294967295", resource("r"), pglock.ErrInvalid, "4294967295"},
		"dash":                  {b.pool, "-", resource("r"), pglock.ErrInvalid, "table -"},
		"open quote":            {b.pool, `"accounts`, resource("r"), pglock.ErrInvalid, ""},
		"three names":           {b.pool, "other.public.accounts", resource("r"), pglock.ErrInvalid, ""},
		"four names":            {b.pool, "a.b.c.d", resource("r"), pglock.ErrInvalid, ""},
		"table with NUL":        {b.pool, "acc\x00ounts", resource("r"), pglock.ErrInvalid, ""},
		"statement":             {b.pool, "accounts; DROP TABLE accounts", resource("r"), pglock.ErrInvalid, ""},
		"view":                  {b.pool, "v", resource("r"), pglock.ErrInvalid, "a view"},
		"materialized view":     {b.pool, "m", resource("r"), pglock.ErrInvalid, "a materialized view"},
		"sequence":              {b.pool, "s", resource("r"), pglock.ErrInvalid, "no table"},
		"index":                 {b.pool, "i", resource("r"), pglock.ErrInvalid, "no table"},
		"type":                  {b.pool, "y", resource("r"), pglock.ErrInvalid, "no table"},
		"table of pglock":       {b.pool, "pglock.locks", resource("r"), pglock.ErrInvalid, "a table of pglock"},
		"table of migrations": {b.pool, "pglock.pglock_schema_migrations", resource("r"), pglock.ErrInvalid,
			"a table of pglock"},
	} {
		t.Run(what, func(t *testing.T) {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("panics: %v", r)
				}
			}()
			err := fencedstore.GuardTable(t.Context(), c.db, c.table, c.opt)
			if !errors.Is(err, c.is) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("GuardTable: %v, want %v that says %q", err, c.is, c.says)
			}
			if c.table == "accounts" && c.db == b.pool && strings.Contains(what, "key") {
				return // which unguarding does not look at
			}
			if err := fencedstore.UnguardTable(t.Context(), c.db, c.table, c.opt); !errors.Is(err, c.is) &&
				!errors.Is(err, fencedstore.ErrNotGuarded) {
				t.Errorf("UnguardTable: %v, want %v", err, c.is)
			}
		})
	}
	if err := fencedstore.GuardTable(t.Context(), b.pool, "accounts", resource(strings.Repeat("x", 512)),
		key("a_key_column_of_a_name_that_is_long")); !errors.Is(err, pglock.ErrInvalid) ||
		!strings.Contains(err.Error(), "resource is 512 bytes") {
		t.Errorf("a resource that leaves no room for keys: %v", err)
	}
	if _, err := fencedstore.TableGuards(t.Context(), (*pgx.Conn)(nil)); !errors.Is(err, pglock.ErrInvalid) {
		t.Errorf("TableGuards without a db: %v", err)
	}
	if _, err := fencedstore.TableGuards(t.Context(), b.pool, schema("nosuch")); !errors.Is(err, pglock.ErrSchema) {
		t.Errorf("TableGuards of no schema: %v", err)
	}
	if n := b.number(t,
		`SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'pglock%') + (SELECT count(*) FROM pglock.events)`); n != 0 {
		t.Errorf("I11: refused calls have left %d triggers and events", n)
	}
}

func TestGuardTableTellsWhatStandsInItsWay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE accounts (id int, owner int)`)
	guard := func(opts ...fencedstore.TableOption) error {
		return fencedstore.GuardTable(t.Context(), b.pool, "accounts", opts...)
	}
	if err := fencedstore.UnguardTable(t.Context(), b.pool, "accounts"); !errors.Is(err, fencedstore.ErrNotGuarded) {
		t.Errorf("unguarded before it was guarded: %v", err)
	}
	must.Do(t, guard(fencedstore.WithTableKey("id")))
	for what, opts := range map[string][]fencedstore.TableOption{
		"another resource": {fencedstore.WithTableResource("x"), fencedstore.WithTableKey("id")},
		"another key":      {fencedstore.WithTableKey("owner")}, "no key": nil,
	} {
		if err := guard(opts...); !errors.Is(err, fencedstore.ErrOtherGuard) ||
			!strings.Contains(err.Error(), "accounts/<id>") {
			t.Errorf("guarded again by %s: %v", what, err)
		}
	}
	if err := guard(fencedstore.WithTableKey("id")); err != nil {
		t.Errorf("guarded again in the same way: %v", err)
	}
	must.Note(t, fencedstore.UnguardTable(t.Context(), b.pool, "accounts"))

	// The guard waits for those who write, and for no longer than it may.
	tx := b.begin(t)
	must.Get(tx.Exec(t.Context(), `INSERT INTO accounts VALUES (1)`))(t)
	conn := b.db.Conn(t)
	must.Get(conn.Exec(t.Context(), `SET lock_timeout = '50ms'`))(t)
	if err := fencedstore.GuardTable(t.Context(), conn, "accounts"); code(err) != "55P03" {
		t.Errorf("guarded while somebody writes: %v", err)
	}
	// In a transaction of the application's own it comes and goes with that.
	must.Note(t, fencedstore.GuardTable(t.Context(), tx, "public.accounts"))
	must.Note(t, tx.Rollback(t.Context()))
	if guards, err := fencedstore.TableGuards(t.Context(), conn); err != nil || len(guards) != 0 {
		t.Errorf("after the rollback: %+v, %v", guards, err)
	}
}

// Two programs guard a table at once, in the same way: the second finds what the first has made.
func TestTwoGuardATableAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE accounts (id int)`)
	tx := b.begin(t)
	must.Get(tx.Exec(t.Context(), `INSERT INTO accounts VALUES (1)`))(t)
	done := make(chan error, 2)
	for range cap(done) {
		conn := b.db.Conn(t)
		go func() { done <- fencedstore.GuardTable(t.Context(), conn, "accounts") }()
	}
	pgtest.Eventually(t, "both wait for whoever has written", func() bool {
		return b.number(t, `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
			WHERE d.datname = current_database() AND l.relation = 'accounts'::regclass AND NOT l.granted`) == cap(done)
	})
	must.Do(t, tx.Commit(t.Context()))
	for range cap(done) {
		must.Note(t, <-done)
	}
	if guards, err := fencedstore.TableGuards(t.Context(), b.pool); err != nil || len(guards) != 1 ||
		guards[0].Problem != "" {
		t.Errorf("%+v, %v", guards, err)
	}
}

// What changes while GuardTable waits for the table is not left without a guard.
func TestGuardTableLooksAgainAfterItHasWaited(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ before, after, meanwhile string }{
		"a child comes": {`CREATE TABLE accounts (id int)`, ``, `CREATE TABLE late () INHERITS (accounts)`},
		"the guard goes": {`CREATE TABLE accounts (id int) PARTITION BY RANGE (id)`,
			`CREATE TABLE late PARTITION OF accounts DEFAULT`, `SELECT pglock.unguard_table('accounts')`},
		"a child comes, and the guard was disabled": {`CREATE TABLE accounts (id int)`,
			`ALTER TABLE accounts DISABLE TRIGGER pglock_guard`, `CREATE TABLE late () INHERITS (accounts)`},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.exec(t, c.before)
			if c.after != "" {
				b.guard(t, "accounts")
				b.exec(t, c.after)
			}
			tx, conn, done := b.begin(t), b.db.Conn(t), make(chan error, 1)
			must.Get(tx.Exec(t.Context(), c.meanwhile))(t)
			go func() { done <- fencedstore.GuardTable(t.Context(), conn, "accounts") }()
			pgtest.Eventually(t, "the guard waits", func() bool {
				return b.number(t, `SELECT cardinality(pg_blocking_pids($1))`, conn.PgConn().PID()) == 1
			})
			must.Do(t, tx.Commit(t.Context()))
			must.Note(t, <-done)
			if guards, err := fencedstore.TableGuards(t.Context(), b.pool); err != nil || len(guards) != 1 ||
				guards[0].Table != "public.accounts" || guards[0].Covered != 2 || guards[0].Problem != "" {
				t.Errorf("%+v, %v", guards, err)
			}
		})
	}
}

// Whatever the table and the resource are called, the guard is of that table and that resource.
func TestI3_OddNamesAreGuardedAsTheyAre(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "holder")
	for i, name := range []string{
		`plain`, `Mixed Case`, `with.dot`, `with"quote`, `with'quote`, `back\slash`, `back\000slash`, `\`, `a\\`,
		`%s %I %1$s %`, `ünïcödé 雪`, `$1`, `$$`, "tab\tand\nline",
		`a,b`, `{a}`, `--`, `"`, `''`, `/`, `pg_temp`, strings.Repeat("x", 63),
	} {
		t.Run(name, func(t *testing.T) {
			schema := pgx.Identifier{fmt.Sprint(i, name[:min(len(name), 50)])}.Sanitize()
			table := schema + "." + pgx.Identifier{name}.Sanitize()
			b.exec(t, fmt.Sprintf(`CREATE SCHEMA %s; CREATE TABLE %s (id int, %s text)`, schema, table,
				pgx.Identifier{name}.Sanitize()))
			for _, keyed := range []bool{false, true} {
				for _, given := range []bool{false, true} {
					resource, wants := name, name
					opts := []fencedstore.TableOption{}
					if given {
						resource = "of " + name + "'s"
						wants = resource
						opts = append(opts, fencedstore.WithTableResource(resource))
					}
					if keyed {
						opts = append(opts, fencedstore.WithTableKey(name))
						wants += "/" + name
					}
					if err := fencedstore.GuardTable(t.Context(), b.pool, table, opts...); err != nil {
						t.Errorf("keyed %v: %v", keyed, err)
						continue
					}
					insert := fmt.Sprintf(`INSERT INTO %s VALUES (1, $1)`, table)
					_, err := b.pool.Exec(t.Context(), insert, name)
					var unfenced *fencedstore.UnfencedError
					if err := fencedstore.Explained(err, l); !errors.As(err, &unfenced) ||
						!errors.Is(err, fencedstore.ErrUnfenced) || unfenced.Resource != wants ||
						!slices.Equal(unfenced.Passed, []string{l.Resource()}) ||
						!strings.HasSuffix(unfenced.Table, "."+name) {
						t.Errorf("keyed %v: %v, want the resource %q and the table", keyed, err, wants)
					}
					if err := b.write(t, l, wants, insert, name); err != nil {
						t.Errorf("keyed %v: %v", keyed, err)
					}
					guards, err := fencedstore.TableGuards(t.Context(), b.pool)
					if err != nil || len(guards) != 1 || guards[0].Resource != resource || guards[0].Problem != "" ||
						guards[0].Covered != 1 || (guards[0].Key == name) != keyed {
						t.Errorf("keyed %v: listed as %+v, %v", keyed, guards, err)
					}
					if _, err := b.pool.Exec(t.Context(),
						`BEGIN; SET LOCAL standard_conforming_strings = off; SET LOCAL escape_string_warning = off; SELECT * FROM pglock.list_guards(); COMMIT`); err != nil {
						t.Errorf("keyed %v, where backslashes escape: %v", keyed, err)
					}
					if len(guards) == 1 { // the name in the list is good for guarding and unguarding
						table = guards[0].Table
					}
					if err := fencedstore.GuardTable(t.Context(), b.pool, table, opts...); err != nil {
						t.Errorf("keyed %v, again: %v", keyed, err)
					}
					if err := fencedstore.UnguardTable(t.Context(), b.pool, table); err != nil {
						t.Errorf("keyed %v, unguarded: %v", keyed, err)
					}
				}
			}
		})
	}
}

// The schema of pglock may be one that the application has tables in: they can be guarded, the protocol's cannot.
func TestTablesBesideTheProtocolCanBeGuarded(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	// who has it before PostgreSQL 15
	must.Get(db.Conn(t).Exec(t.Context(), "REVOKE CREATE ON SCHEMA public FROM PUBLIC"))(t)
	must.Do(t, migrations.Up(t.Context(), db.URL(), migrations.WithSchema("public")))
	b := newBenchOn(t, db, pglock.WithSchema("public"))
	b.exec(t, `CREATE TABLE accounts (id int)`)
	schema := fencedstore.WithSchema("public")
	for _, table := range []string{"locks", "fences", "events", "installation", "spent_grants", "sessions", "waiters",
		"done_keys", "pglock_schema_migrations"} {
		if err := fencedstore.GuardTable(t.Context(), b.pool, table, schema); !errors.Is(err, pglock.ErrInvalid) ||
			!strings.Contains(err.Error(), "a table of pglock") {
			t.Errorf("%s: %v", table, err)
		}
	}
	b.guard(t, "accounts", schema)
	if _, err := b.pool.Exec(t.Context(), `INSERT INTO accounts VALUES (1)`); code(err) != "LK011" {
		t.Errorf("unfenced: %v", err)
	}
	must.Note(t, b.write(t, b.acquire(t, "accounts"), "accounts", `INSERT INTO accounts VALUES (1)`))
}

// Two schemas of pglock in one database have guards of their own: neither a fence nor a bypass of one is proof for the
// other.
func TestI3_GuardsOfTwoSchemasAreApart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const name = `pg "lock" 2`
	must.Do(t, migrations.Up(t.Context(), b.db.URL(), migrations.WithSchema(name)))
	second, schema := newBenchOn(t, b.db, pglock.WithSchema(name)), fencedstore.WithSchema(name)
	b.exec(t, `CREATE TABLE a (id int); CREATE TABLE b (id int)`)
	b.guard(t, "a", fencedstore.WithTableResource("r"))
	b.guard(t, "b", fencedstore.WithTableResource("r"), schema)
	if err := fencedstore.GuardTable(t.Context(), b.pool, "a", fencedstore.WithTableResource("r"),
		schema); !errors.Is(err, fencedstore.ErrOtherGuard) {
		t.Errorf("one table under the guards of both: %v", err)
	}
	for table, of := range map[string]string{"public.a": "pglock", "public.b": name} {
		guards, err := fencedstore.TableGuards(t.Context(), b.pool, fencedstore.WithSchema(of))
		if err != nil || len(guards) != 1 || guards[0].Table != table || guards[0].Problem != "" {
			t.Errorf("the guards of %s: %+v, %v; want %s", of, guards, err, table)
		}
	}
	if err := fencedstore.UnguardTable(t.Context(), b.pool, "a", schema); !errors.Is(err, fencedstore.ErrNotGuarded) {
		t.Errorf("unguarded by the other schema: %v", err)
	}
	first, other := b.acquire(t, "r"), second.acquire(t, "r")
	for what, c := range map[string]struct {
		lease *pglock.Lease
		table string
		ok    bool
	}{"first, own": {first, "a", true}, "first, other": {first, "b", false}, "second, own": {other, "b", true},
		"second, other": {other, "a", false}} {
		if err := b.write(t, c.lease, "r", `INSERT INTO `+c.table+` VALUES (1)`); (err == nil) != c.ok || !c.ok &&
			(!errors.Is(err, fencedstore.ErrUnfenced) || strings.Contains(err.Error(), "through the pool") ||
				!strings.Contains(err.Error(), "guards the table, and the lease is of schema ")) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := b.pool.Exec(t.Context(),
		`BEGIN; SELECT pglock.bypass_guards('r', 'a'); INSERT INTO b VALUES (1); COMMIT`); code(err) != "LK011" {
		t.Errorf("the bypass of the other schema: %v", err)
	}
}

// A write under the fence of another resource is told which table minds, and which fence it needs.
func TestUnfencedWriteIsToldTheTableAndTheResource(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE accounts (id int)`)
	b.guard(t, "accounts")
	err := b.write(t, b.acquire(t, "report"), "report", `INSERT INTO accounts VALUES (1)`)
	var unfenced *fencedstore.UnfencedError
	if !errors.Is(err, fencedstore.ErrUnfenced) || !errors.As(err, &unfenced) || unfenced.Table != "public.accounts" ||
		unfenced.Resource != "accounts" || code(err) != "LK011" {
		t.Fatalf("%v", err)
	}
	if !slices.Equal(unfenced.Passed, []string{"report"}) {
		t.Errorf("it has passed the fences of %q, want that of report", unfenced.Passed)
	}
	for _, says := range []string{"public.accounts", "'accounts'", `passed that of "report"`, "Fence.Resource"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v: no %s", err, says)
		}
	}
	if errors.Is(err, pglock.ErrLost) || errors.Is(err, fencedstore.ErrStaleToken) {
		t.Errorf("%v is another error too", err)
	}
}

// keyTypes are the types that a key may have, with a value and the text that names it in a resource.
var keyTypes = []struct{ sql, value, text string }{
	{"smallint", "-7", "-7"}, {"int", "42", "42"}, {"bigint", "9223372036854775807", "9223372036854775807"},
	{"numeric", "1.50", "1.50"}, {"numeric(40,0)", "1234567890123456789012345678901234567890",
		"1234567890123456789012345678901234567890"},
	{"numeric", "NaN", "NaN"}, {"text", "a/b", "a/b"}, {"text", "", ""},
	{"text", `it's "quoted" \ 100%`, `it's "quoted" \ 100%`}, {"text", "ünï 雪 😀", "ünï 雪 😀"},
	{"varchar(5)", "abc", "abc"}, {"uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
		"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
	{"bool", "t", "true"}, {"date", "2026-03-01", "2026-03-01"}, {"date", "infinity", "infinity"},
	{"date", "0044-03-15 BC", "0044-03-15 BC"},
	{"mood", "it's ok", "it's ok"}, {"whole", "42", "42"}, {"text COLLATE \"C\"", "é", "é"},
}

// A row's key has one text, whatever the session's settings: its resource is the same for every program.
func TestI3_KeysOfEveryTypeHaveOneText(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TYPE mood AS ENUM ('it''s ok', 'sad'); CREATE DOMAIN whole AS int CHECK (VALUE > 0)`)
	l := b.acquire(t, "holder")
	for i, c := range keyTypes {
		t.Run(c.sql+" "+c.value, func(t *testing.T) {
			table := fmt.Sprint("t", i)
			b.exec(t, fmt.Sprintf(`CREATE TABLE %s (k %s, n int)`, table, c.sql))
			b.guard(t, table, fencedstore.WithTableKey("k"))
			for _, settings := range []string{
				`SELECT 1`,
				`SET LOCAL datestyle = 'German'; SET LOCAL intervalstyle = 'iso_8601'; SET LOCAL timezone = 'Asia/Tokyo'; SET LOCAL extra_float_digits = -15;
					SET LOCAL bytea_output = 'escape'; SET LOCAL quote_all_identifiers = on; SET LOCAL standard_conforming_strings = off; SET LOCAL client_min_messages = error;
					SET LOCAL xmloption = document; SET LOCAL search_path = pg_temp`,
			} {
				for _, sql := range []string{`INSERT INTO public.%s VALUES ($VALUE)`, `UPDATE public.%s SET n = 1`,
					`DELETE FROM public.%s`} {
					sql = strings.Replace(fmt.Sprintf(sql, table), "($VALUE)", "('"+
						strings.ReplaceAll(c.value, "'", "''")+"')", 1)
					err := b.write(t, l, table+"/another", settings+";"+sql)
					var unfenced *fencedstore.UnfencedError
					if !errors.As(err, &unfenced) || unfenced.Resource != table+"/"+c.text {
						t.Errorf("%s: %v, want the resource %q", sql, err, table+"/"+c.text)
					}
					if err := b.write(t, l, table+"/"+c.text, settings+";"+sql); err != nil {
						t.Errorf("%s: %v", sql, err)
					}
				}
			}
		})
	}
}

// A type whose text depends on a setting, or that pads, rounds or compares otherwise than by its text, is no key.
func TestKeysOfOtherTypesAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t,
		`CREATE TYPE pair AS (a int, b int); CREATE DOMAIN moment AS timestamptz; CREATE TYPE span AS RANGE (subtype = int)`)
	for i, kind := range []string{"char(5)", "\"char\"", "name", "real", "double precision", "money", "timestamp",
		"timestamptz", "time", "timetz", "interval", "bytea", "json", "jsonb", "xml",
		"inet", "cidr", "macaddr", "point", "bit(3)", "oid", "regclass", "xid8", "pg_lsn", "tsvector", "int[]",
		"text[]", "int4range", "pair", "span", "moment"} {
		table := fmt.Sprint("t", i)
		b.exec(t, fmt.Sprintf(`CREATE TABLE %s (k %s)`, table, kind))
		if err := fencedstore.GuardTable(t.Context(), b.pool, table, fencedstore.WithTableKey("k")); !errors.Is(err,
			pglock.ErrInvalid) || code(err) != "42804" {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// What is one key to an index would be two resources.
func TestAKeyWithANondeterministicCollationIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.pool.Exec(t.Context(), `CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2',
		deterministic = false)`); code(err) == "0A000" {
		t.Skipf("only ICU has nondeterministic collations, and this server is built without it: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	b.exec(t, `CREATE COLLATION own (locale = 'C'); CREATE DOMAIN name_of AS text COLLATE folding;
		CREATE TABLE t (a text COLLATE folding UNIQUE, b varchar COLLATE folding, c name_of, d text COLLATE own)`)
	for _, key := range []string{"a", "b", "c"} {
		err := fencedstore.GuardTable(t.Context(), b.pool, "t", fencedstore.WithTableKey(key))
		want := "key column " + key + " of public.t is of a nondeterministic collation: it must be of one that tells " +
			"all texts apart"
		if !errors.Is(err, pglock.ErrInvalid) || code(err) != "42804" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", key, err)
		}
	}
	b.guard(t, "t", fencedstore.WithTableKey("d"))
	b.exec(t, `ALTER TABLE t ALTER d TYPE text COLLATE folding`)
	if guards, err := fencedstore.TableGuards(t.Context(), b.pool); err != nil || len(guards) != 1 ||
		guards[0].Problem != "key column d of public.t is of a nondeterministic collation: drop the guard" {
		t.Errorf("a key whose collation has become one: %+v, %v", guards, err)
	}
}

// Triggers do not see a virtual column, which PostgreSQL has from 18 on: a guard by it would let nobody write. A
// generated column that is stored is a key like any other.
func TestGeneratedColumnsAreKeysIfTheyAreStored(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE stored (id int, k int GENERATED ALWAYS AS (id * 2) STORED)`)
	b.guard(t, "stored", fencedstore.WithTableKey("k"))
	if err := b.write(t, b.acquire(t, "x"), "stored/42", `INSERT INTO stored (id) VALUES (21)`); err != nil {
		t.Errorf("a write under the fence of its key: %v", err)
	}
	version := pgtest.One[int](t, b.pool, `SELECT current_setting('server_version_num')::int`)
	if version >= 180000 {
		b.exec(t, `CREATE TABLE virtual (id int, k int GENERATED ALWAYS AS (id * 2) VIRTUAL)`)
		b.exec(t, `ALTER TABLE stored DROP k; ALTER TABLE stored ADD k int GENERATED ALWAYS AS (id * 2) VIRTUAL`)
	} else { // the catalog says so, which an older server takes for an ordinary column
		b.exec(t, `CREATE TABLE virtual (id int, k int); ALTER TABLE stored ALTER k DROP EXPRESSION`)
		b.exec(t, `DO $$ BEGIN
			SET LOCAL allow_system_table_mods = on;
			UPDATE pg_attribute SET attgenerated = 'v' WHERE attname = 'k' AND attrelid IN ('virtual'::regclass, 'stored'::regclass);
		END $$`)
	}
	err := fencedstore.GuardTable(t.Context(), b.pool, "virtual", fencedstore.WithTableKey("k"))
	if !errors.Is(err, pglock.ErrInvalid) || code(err) != "42804" ||
		!strings.Contains(err.Error(),
			"key column k of public.virtual is a virtual generated column: it must be stored") {
		t.Errorf("a virtual column: %v", err)
	}
	var problem string
	if err := b.pool.QueryRow(t.Context(), `SELECT problem FROM pglock.list_guards()`).Scan(&problem); err != nil ||
		problem != "key column k of public.stored is a virtual generated column: drop the guard" {
		t.Errorf("a key that became virtual: %q, %v", problem, err)
	}
}

// What decides is the row as it was and as it comes to be, after the application's own triggers.
func TestI3_TheGuardOfRowsGoesByTheRowItself(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE t (id int UNIQUE, k text, g text GENERATED ALWAYS AS ('g' || k) STORED, doc json, n int);
		INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, 'c');
		CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.n = 7 THEN NEW.k := 'changed'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER zz BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION change()`)
	l := b.acquire(t, "holder")
	for _, key := range []string{"k", "g"} {
		b.guard(t, "t", fencedstore.WithTableKey(key))
		prefix := "t/"
		if key == "g" {
			prefix = "t/g"
		}
		for _, c := range []struct{ sql, needs string }{
			{`INSERT INTO t VALUES (9, 'x')`, "x"},
			{`INSERT INTO t VALUES (9, 'x', DEFAULT, NULL, 7)`, "changed"},
			{`INSERT INTO t VALUES (9, NULL)`, ""},
			{`INSERT INTO t VALUES (9, 'x'), (8, 'y')`, "x y"},
			{`INSERT INTO t VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET n = 1`, "a"},
			{`INSERT INTO t VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET k = EXCLUDED.k`, "a x"},
			{`INSERT INTO t VALUES (2, 'x') ON CONFLICT (id) DO UPDATE SET k = EXCLUDED.k`, ""},
			{`UPDATE t SET n = 1 WHERE id = 1`, "a"},
			{`UPDATE t SET k = 'b' WHERE id = 1`, "a b"},
			{`UPDATE t SET k = NULL WHERE id = 1`, ""},
			{`UPDATE t SET n = 7 WHERE id = 1`, "a changed"},
			{`UPDATE t SET n = 1 WHERE id IN (1, 3)`, "a c"},
			{`DELETE FROM t WHERE id = 1`, "a"},
			{`DELETE FROM t WHERE id = 2`, ""},
			{`UPDATE t SET doc = '{"a": "\u0000"}' WHERE id = 1`, "a"}, // which jsonb cannot hold
		} {
			var all fencedstore.Fences
			for _, k := range strings.Fields(c.needs) {
				all = append(all, fencedstore.Fence{Lease: l, Resource: prefix + k, SameToken: true})
			}
			undo := errors.New("undone")
			try := func(fences fencedstore.Fences) error {
				fences = append(fences, fencedstore.Fence{Lease: l, Resource: "t", SameToken: true})
				return b.store.Write(t.Context(), fences,
					func(ctx context.Context, tx pgx.Tx) error {
						if _, err := tx.Exec(ctx, c.sql); err != nil {
							return err
						}
						return undo
					})
			}
			for i := range all {
				missing := append(append(fencedstore.Fences{}, all[:i]...), all[i+1:]...)
				var unfenced *fencedstore.UnfencedError
				if err := try(missing); !errors.As(err, &unfenced) || unfenced.Resource != all[i].Resource {
					t.Errorf("key %s: %s without the fence of %s: %v", key, c.sql, all[i].Resource, err)
				}
			}
			if err := try(all); len(all) > 0 && !errors.Is(err, undo) {
				t.Errorf("key %s: %s with its fences: %v", key, c.sql, err)
			} else if len(all) == 0 && (!errors.Is(err, fencedstore.ErrUnfenced) ||
				!strings.Contains(err.Error(), "a row without a key has no fence")) {
				t.Errorf("key %s: %s of a row without a key: %v", key, c.sql, err)
			}
		}
		must.Do(t, fencedstore.UnguardTable(t.Context(), b.pool, "t"))
	}
}

// A column that is added to a guarded table changes nothing for its rows, whatever it holds.
func TestI3_ColumnsThatComeLaterChangeNoKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t,
		`CREATE TYPE mood AS ENUM ('ok'); CREATE TYPE pair AS (a json, b int); CREATE DOMAIN doc AS json; CREATE TABLE t (on_time bool, day date)`)
	l := b.acquire(t, "holder")
	for _, column := range []string{"a json", "b json[]", "c pair", "d doc", "e mood", "f jsonb", "g float8"} {
		for key, value := range map[string]string{"on_time": "true", "day": "2026-03-01"} {
			b.exec(t, `DROP TABLE t; CREATE TABLE t (on_time bool, day date)`)
			b.guard(t, "t", fencedstore.WithTableKey(key))
			b.exec(t, `ALTER TABLE t ADD `+column)
			name, kind, _ := strings.Cut(column, " ")
			var odd string // what jsonb cannot hold, where the type can
			switch kind {
			case "json", "doc":
				odd = `'{"a": "\u0000"}'`
			case "json[]":
				odd = `ARRAY['"\u0000"'::json]`
			case "pair":
				odd = `('"\u0000"', 1)`
			case "mood":
				odd = `'ok'`
			case "float8":
				odd = `'NaN'`
			default:
				odd = `'{}'`
			}
			insert := fmt.Sprintf(`SET LOCAL datestyle = 'German'; INSERT INTO t (on_time, day, %s) VALUES (true, '2026-03-01', %s)`, name, odd)
			var unfenced *fencedstore.UnfencedError
			if err := b.write(t, l, "t", insert); !errors.As(err, &unfenced) || unfenced.Resource != "t/"+value {
				t.Errorf("%s, key %s: %v, want the resource t/%s", column, key, err, value)
			}
			if err := b.write(t, l, "t/"+value, insert); err != nil {
				t.Errorf("%s, key %s: %v", column, key, err)
			}
		}
	}
}

// Rows without a key from before the guard are an operator's: a bypass reaches them.
func TestBypassReachesRowsWithoutAKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE t (k int); INSERT INTO t VALUES (NULL)`)
	b.guard(t, "t", fencedstore.WithTableKey("k"))
	err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(),
			`SELECT pglock.bypass_guards('a row without a key', 'alice'); UPDATE t SET k = 1`)
		return err
	})
	if err != nil || b.number(t, `SELECT count(*) FROM t WHERE k = 1`) != 1 {
		t.Errorf("%v", err)
	}
	if n := b.number(t,
		`SELECT count(*) FROM pglock.list_history() WHERE kind = 'bypass' AND resource = 'public.t'`); n != 1 {
		t.Error("the history does not name the table")
	}
}

// A key that makes the resource longer than a fence's name may be has no fence: such a row cannot be written.
func TestI3_KeyThatIsTooLongForAFenceFailsClosed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE t (k text)`)
	b.guard(t, "t", fencedstore.WithTableKey("k"))
	l := b.acquire(t, "holder")
	longest := strings.Repeat("é", 255) // 2 + 510 bytes
	must.Note(t, b.write(t, l, "t/"+longest, `INSERT INTO t VALUES ($1)`, longest))
	if err := b.write(t, l, "t/"+longest, `INSERT INTO t VALUES ($1)`, longest+"x"); !errors.Is(err,
		fencedstore.ErrUnfenced) {
		t.Errorf("a key of 511 bytes: %v", err)
	}
	if err := b.write(t, l, "t/"+longest+"x", `INSERT INTO t VALUES ($1)`, longest+"x"); !errors.Is(err,
		pglock.ErrInvalid) {
		t.Errorf("a fence of 513 bytes: %v", err)
	}
	if err := b.write(t, l, "t", `INSERT INTO t VALUES ($1)`, strings.Repeat("x", 1<<20)); !errors.Is(err,
		fencedstore.ErrUnfenced) {
		t.Errorf("a key of a megabyte: %v", err)
	}
}

func ExampleGuardTable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	if _, err := pool.Exec(ctx, "CREATE TABLE accounts (id int PRIMARY KEY, balance int)"); err != nil {
		fmt.Println(err)
		return
	}
	// Once, where the schema is made: each account has a fence of its own, accounts/1 and so on.
	if err := fencedstore.GuardTable(ctx, pool, "accounts", fencedstore.WithTableKey("id")); err != nil {
		fmt.Println(err)
		return
	}

	// A program that has never heard of locks.
	_, err = pool.Exec(ctx, "INSERT INTO accounts VALUES (1, 100)")
	fmt.Println("unfenced:", err)

	lease, err := client.Acquire(ctx, "accounts/1")
	if err != nil {
		fmt.Println(err)
		return
	}
	insert := func(id int) error {
		return fencedstore.New(pool).Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO accounts VALUES ($1, 100)", id)
			return err
		})
	}
	fmt.Println("of another account:", errors.Is(insert(2), fencedstore.ErrUnfenced))
	fmt.Println("fenced:", insert(1))
	// Output:
	// unfenced: ERROR: table public.accounts is guarded: this transaction has not passed the fence of 'accounts/1' (SQLSTATE LK011)
	// of another account: true
	// fenced: <nil>
}
