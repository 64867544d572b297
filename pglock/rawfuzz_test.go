package pglock_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// odd are values of a type that a rule may forget, as SQL.
var odd = map[string][]string{
	"integer": {"-2147483648", "-1", "0", "2147483647"},
	"bigint":  {"-9223372036854775808", "-1", "0", "9223372036854775807"},
	"interval": {"-1 s", "0", "1 mon", "-1 mon 31 days", "178000000 years", "-178000000 years",
		"2147483647 days", "-2147483648 days", "1 day -24 hours"},
	"text":                     {"", "\n", "%", `\`, strings.Repeat("x", 2000), strings.Repeat("\U0010FFFF", 128)},
	"uuid":                     {"00000000-0000-0000-0000-000000000000"},
	"boolean":                  {},
	"jsonb":                    {"{}", `"` + strings.Repeat("x", 17000) + `"`},
	"timestamp with time zone": {"infinity", "-infinity", "294276-12-31 23:59:59Z", "4713-01-01 00:00:00Z BC"},
	"regclass":                 {"0", "4294967295", "pg_class", "pglock.locks", "pglock.described"},
	"oid":                      {"0", "4294967295"},
}

// usual are arguments that functions accept, by their types; of those with these names, others.
var usual = map[string]string{
	"integer": "1", "bigint": "1", "interval": "1 s", "text": "held", "uuid": "11111111-2222-3333-4444-555555555555",
	"boolean": "false", "jsonb": "{}",
	"timestamp with time zone": "2026-01-01Z", "regclass": "accounts",
	"oid": "accounts", "p_mode": "exclusive", "p_order": "age", "p_level": "all", "p_keep": "30 days", "p_slot": "0",
	"p_key": "id",
}

type parameter struct{ name, of string }

// usually is an accepted value, as SQL.
func (a parameter) usually() string {
	of, isArray := strings.CutSuffix(a.of, "[]")
	singular := a.name
	if isArray {
		singular = strings.TrimSuffix(a.name, "s")
	}
	v := cmp.Or(usual[singular], usual[of])
	switch {
	case a.name == "p_capacities":
		return "'{NULL}'::integer[]"
	case isArray:
		return "ARRAY[" + literal(v, of) + "]"
	}
	return literal(v, of)
}

// literal is a usual value as SQL. A table is known by its name.
func literal(v, of string) string {
	if of == "oid" {
		return fmt.Sprintf("'%s'::regclass::oid", v)
	}
	return fmt.Sprintf("'%s'::%s", v, of)
}

// oddly are the values to try, as SQL.
func (a parameter) oddly(version int) []string {
	of, isArray := strings.CutSuffix(a.of, "[]")
	all := []string{"NULL::" + a.of}
	values := odd[of]
	if of == "interval" && version >= 17 {
		values = append([]string{"infinity", "-infinity"}, values...)
	}
	for _, v := range values {
		v = "'" + v + "'::" + of
		if isArray {
			v = "ARRAY[" + v + "]"
		}
		all = append(all, v)
	}
	if isArray {
		v := literal(usual[of], of)
		all = append(all, "'{}'::"+a.of, "'{NULL}'::"+a.of, fmt.Sprintf("ARRAY[%s, %s]", v, v),
			fmt.Sprintf("ARRAY[ARRAY[%s]]", v),
			fmt.Sprintf("(array_fill(%s, ARRAY[1], ARRAY[7]))", v))
	}
	return all
}

// named reports whether a message names the argument: those of functions for many also by one of their elements.
func (a parameter) named(message string) bool {
	name := strings.TrimPrefix(a.name, "p_")
	if strings.HasPrefix(name, "capacit") {
		name = "limit"
	}
	for _, n := range []string{name, strings.TrimSuffix(name, "s"), strings.ReplaceAll(name, "_", " "),
		strings.TrimSuffix(name, "ies") + "y"} {
		if strings.Contains(message, n) {
			return true
		}
	}
	return strings.HasSuffix(a.of, "[]") && strings.HasPrefix(message, "the arrays have ")
}

// A function takes every value of its arguments, or refuses it: as an argument, by its name, or because of what became
// of the lease. No error comes from the server's arithmetic, from deep inside.
func TestI11_NoArgumentIsTooOddForARule(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	execute(t, conn, "SELECT pglock.acquire_lease('held', "+someID+", "+someID+", 'h', '1 h')")
	execute(t, conn, "SELECT pglock.acquire_lease('held', gen_random_uuid(), gen_random_uuid(), 'w', '1 h', p_wait "+
		"=> true, p_session_ttl => '1 h')")
	version := pgtest.One[int](t, conn, "SELECT current_setting('server_version_num')::int / 10000")
	found, err := conn.Query(t.Context(),
		`SELECT p.proname, p.proargnames[:p.pronargs], ARRAY(SELECT format_type(a, NULL) FROM unnest(p.proargtypes) a), p.pronargs - p.pronargdefaults
		FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace AND p.pronargs > 0 AND p.prorettype <> 'trigger'::regtype
		AND has_function_privilege('pglock_admin', p.oid, 'EXECUTE') ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	type function struct {
		Name     string
		Args     []string
		Of       []string
		Required int
	}
	functions, err := pgx.CollectRows(found, pgx.RowToStructByPos[function])
	if err != nil || len(functions) < 40 {
		t.Fatal(len(functions), err)
	}
	execute(t, conn, `CREATE FUNCTION try(call text) RETURNS text LANGUAGE plpgsql AS $$
		BEGIN
			EXECUTE 'SELECT * FROM pglock.' || call;
			RAISE EXCEPTION USING ERRCODE = 'ZZ000'; -- so that nothing of it remains
		EXCEPTION
			WHEN SQLSTATE 'ZZ000' THEN RETURN '';
			WHEN OTHERS THEN RETURN SQLSTATE || ' ' || SQLERRM;
		END $$`)
	var calls, told []string
	var tries []func(state, message string) bool
	for _, f := range functions {
		args := make([]parameter, len(f.Args))
		for i, name := range f.Args {
			args[i] = parameter{name, f.Of[i]}
		}
		for i, a := range args {
			if _, known := usual[strings.TrimSuffix(a.of, "[]")]; !known {
				t.Errorf("%s has an argument of type %s, for which this test has no values", f.Name, a.of)
				continue
			}
			for n, v := range a.oddly(version) {
				if !pgtest.EveryTest && n > 0 && (n+i+len(f.Name))%2 == 0 {
					continue // in the short tier NULL and every other value, not the same ones for each argument
				}
				given := []string{a.name + " => " + v}
				for j, other := range args {
					if j != i && j < f.Required {
						given = append(given, other.name+" => "+other.usually())
					}
				}
				calls = append(calls, f.Name+"("+strings.Join(given, ", ")+")")
				told = append(told, fmt.Sprintf("%s(%s => %s)", f.Name, a.name, shorten(v)))
				tries = append(tries, func(state, message string) bool { return answered(f.Name, a, state, message) })
			}
		}
	}
	tried := must.Get(conn.Query(t.Context(),
		"SELECT try(c) FROM unnest($1::text[]) WITH ORDINALITY AS u (c, n) ORDER BY n", calls))(t)
	answers, err := pgx.CollectRows(tried, pgx.RowTo[string])
	if err != nil || len(answers) != len(calls) {
		t.Fatal(len(answers), err)
	}
	for i, answer := range answers {
		if state, message, refused := strings.Cut(answer, " "); refused && !tries[i](state, message) {
			t.Errorf("%s: %s", told[i], answer)
		}
	}
	t.Logf("%d calls of %d functions", len(calls), len(functions))
}

// answered reports whether an error is a refusal of this argument, or says what is known of the lease.
func answered(function string, a parameter, state, message string) bool {
	switch {
	case strings.HasPrefix(state, "LK"):
		return true
	case strings.Contains(function, "guard") || function == "key_column": // they speak of tables too
		return slices.Contains([]string{"42P01", "42703", "42809", "42704", "42501"}, state) || state == invalid &&
			a.named(message)
	case function == "advance_epoch" && a.name == "p_above" && strings.HasPrefix(message, "no greater token is left"):
		return state == "54000"
	case function == "mark_connection" && a.name == "p_version": // it goes with a holder
		return state == invalid && (a.named(message) || strings.HasPrefix(message, "holder is NULL"))
	}
	return state == invalid && a.named(message)
}

func shorten(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
