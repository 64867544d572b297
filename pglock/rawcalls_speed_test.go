package pglock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// grantIDOf is the secret of a lease, as SQL.
func grantIDOf(t *testing.T, conn *pgx.Conn, name string) (id string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT quote_literal(grant_id) || '::uuid' FROM pglock.locks WHERE name = $1", name).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// eachOf is a call of acquire_each for one name, whose arguments are right but for those that are named, with their value.
func eachOf(name string, change ...string) string {
	args := []struct{ what, right string }{{"names", "ARRAY[" + name + "]"}, {"grants", "ARRAY[" + someID + "]"}, {"session", someID}, {"holders", "ARRAY['h']"},
		{"ttls", "ARRAY['1 s'::interval]"}, {"metadata", "ARRAY[NULL::jsonb]"}, {"modes", "ARRAY['exclusive']"}, {"limits", "ARRAY[NULL::int]"},
		{"waits", "ARRAY[false]"}, {"session ttl", "'10 s'"}, {"owners", "ARRAY[NULL::uuid]"}, {"nested", "ARRAY[false]"}, {"turns", "ARRAY[1]"}}
	values := make([]string, len(args))
	for i, arg := range args {
		values[i] = arg.right
		for _, c := range change {
			if c == "waits" && arg.what == c {
				values[i] = "ARRAY[true]"
			} else if what, value, named := strings.Cut(c, " = "); named && what == arg.what {
				values[i] = value
			}
		}
	}
	return "acquire_each(" + strings.Join(values, ", ") + ")"
}

func TestI11_RefusedSQLCallsOfTheShortWaysChangeNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	conn, caller := db.Conn(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	c := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "held")
	if err := mustAcquire(t, c, "free").Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, c, "readers", pglock.Shared())
	type refused struct {
		call  string
		state string // "" for an answer that refuses without an error
		says  string
	}
	var all []refused
	add := func(call, state, says string) { all = append(all, refused{call, state, says}) }
	id, long := someID, "repeat('x', 513)"

	// The bad arguments of acquire are refused by whatever way they would go.
	for _, name := range []string{"'new'", "'free'", "'held'", "'readers'"} {
		for _, more := range []string{"", ", p_wait => true", ", p_turns => 8", ", p_retry => true"} {
			lease := func(grant, session, holder, ttl, metadata string) string {
				return "acquire_lease(" + name + ", " + grant + ", " + session + ", " + holder + ", " + ttl + ", " + metadata + more + ")"
			}
			add(lease("NULL", id, "'h'", "'1 s'", "NULL"), invalid, "grant_id")
			add(lease(id, "NULL", "'h'", "'1 s'", "NULL"), invalid, "session_id")
			add(lease(id, id, "NULL", "'1 s'", "NULL"), invalid, "holder is NULL")
			add(lease(id, id, "''", "'1 s'", "NULL"), invalid, "holder is 0 bytes long: it must have 1 to 256")
			add(lease(id, id, "repeat('x', 257)", "'1 s'", "NULL"), invalid, "holder is 257 bytes")
			add(lease(id, id, "'h'", "NULL", "NULL"), invalid, "ttl is NULL")
			add(lease(id, id, "'h'", "'99 ms'", "NULL"), invalid, "ttl is 00:00:00.099: it must be from 100 ms to 24 hours")
			add(lease(id, id, "'h'", "'-1 s'", "NULL"), invalid, "ttl is -00:00:01")
			add(lease(id, id, "'h'", "'24:00:00.000001'", "NULL"), invalid, "ttl is 24:00:00.000001")
			add(lease(id, id, "'h'", "'1 s'", "to_jsonb(repeat('x', 16400))"), invalid, "metadata is 16402 bytes")
		}
		for _, turns := range []string{"0", "-1", "1001", "2147483647", "NULL"} {
			add("acquire_lease("+name+", "+id+", "+id+", 'h', '1 s', p_turns => "+turns+")", invalid, "turns is "+turns+": it must be from 1 to 1000")
			add("acquire_lease("+name+", "+id+", "+id+", 'h', '1 s', p_wait => true, p_turns => "+turns+")", invalid, "turns is "+turns)
			add(eachOf(name, "turns = ARRAY["+turns+"::int]"), invalid, "turns is "+turns)
		}
		for _, mode := range []string{"p_mode => 'shared'", "p_mode => 'limit', p_capacity => 2"} {
			add("acquire_lease("+name+", "+id+", "+id+", 'h', '1 s', p_turns => 2, "+mode+")", invalid, "turns is 2: it must be from 1 to 1000, and 1 unless the mode is exclusive")
		}
		add("acquire_lease("+name+", "+id+", "+id+", 'h', '1 s', p_mode => 'nonsense')", invalid, "mode is 'nonsense'")
		add("acquire_lease("+name+", "+id+", "+id+", 'h', '1 s', p_mode => NULL)", invalid, "mode is NULL")
		add("acquire_lease("+name+", "+id+", "+id+", 'h', '1 s', p_capacity => 2)", invalid, "limit is 2 with mode exclusive: it must be NULL")
		add("acquire_lease("+name+", "+id+", "+id+", 'h', '1 s', p_wait => true, p_session_ttl => '-1 s')", invalid, "session ttl is -00:00:01")
		add("acquire_lease("+name+", "+id+", "+id+", 'h', '1 s', p_wait => true, p_session_ttl => NULL)", invalid, "session ttl is NULL")
		for _, waits := range []string{"", "waits"} {
			add(eachOf(name, waits, "session = NULL"), invalid, "session_id")
			add(eachOf(name, waits, "grants = ARRAY[NULL::uuid]"), invalid, "grant_id")
			add(eachOf(name, waits, "holders = ARRAY['']"), invalid, "holder is 0 bytes")
			add(eachOf(name, waits, "holders = NULL"), invalid, "holder is NULL")
			add(eachOf(name, waits, "holders = '{}'"), invalid, "holder is NULL")
			add(eachOf(name, waits, "ttls = NULL"), invalid, "ttl is NULL")
			add(eachOf(name, waits, "ttls = '{-1 s}'"), invalid, "ttl is -00:00:01")
			add(eachOf(name, waits, "modes = NULL"), invalid, "mode is NULL")
			add(eachOf(name, waits, "modes = '{nonsense}'"), invalid, "mode is 'nonsense'")
			add(eachOf(name, waits, "limits = '{2}'"), invalid, "limit is 2 with mode exclusive")
			add(eachOf(name, waits, "turns = NULL"), invalid, "turns is NULL")
			add(eachOf(name, waits, "owners = NULL"), invalid, "the arrays have 1, 1 and 0 elements: they must have the same number, from 1 to 1000")
		}
		add(eachOf(name, "waits", "session ttl = '-1 s'"), invalid, "session ttl is -00:00:01")
		add(eachOf(name, "waits", "session ttl = NULL"), invalid, "session ttl is NULL")
		// One bad request undoes the others.
		add(strings.Replace(eachOf(name, "waits"), "ARRAY["+name+"], ARRAY["+id+"]", "ARRAY["+name+", 'zzz'], ARRAY["+id+", NULL]", 1), invalid, "the arrays have 2, 2 and 1 elements")
	}
	for _, name := range []string{"NULL", "''", long} {
		for _, call := range []string{"acquire_lease(" + name + ", " + id + ", " + id + ", 'h', '1 s')", "acquire_lease(" + name + ", " + id + ", " + id + ", 'h', '1 s', p_wait => true)",
			"acquire_lease(" + name + ", " + id + ", " + id + ", 'h', '1 s', p_turns => 8)", eachOf(name + "::text"), eachOf(name+"::text", "waits")} {
			add(call, invalid, "name is ")
		}
	}

	// Arrays that do not fit, of every call for many.
	many := func(names, grants, owners string) string {
		return "acquire_many(" + names + ", " + grants + ", " + owners + ", " + id + ", 'h', '1 s')"
	}
	thousandAndOne := func(element string) string { return "array_fill(" + element + ", ARRAY[1001])" }
	one, two := "ARRAY["+id+"]", "ARRAY["+id+", "+id+"]"
	const rule = "they must have the same number, from 1 to 1000"
	for _, call := range []string{many("NULL", "NULL", "NULL"), many("'{}'", "'{}'", "'{}'"), many("'{new}'", "NULL", one), many("NULL", one, one), many("'{new}'", one, "NULL"),
		many("'{new,free}'", one, one), many("'{new}'", two, one), many("'{new}'", one, two), many(thousandAndOne("'new'::text"), thousandAndOne(id), thousandAndOne(id))} {
		add(call, invalid, rule)
	}
	for _, function := range []string{"release_many", "check_leases"} {
		for _, args := range []string{"NULL, NULL, NULL", "'{}', '{}', '{}'", "'{held}', NULL, " + one, "NULL, '{1}', " + one, "'{held}', '{1}', NULL", "'{held,free}', '{1}', " + one,
			"'{held}', '{1,2}', " + one, "'{held}', '{1}', " + two, thousandAndOne("'held'::text") + ", " + thousandAndOne("1::bigint") + ", " + thousandAndOne(id)} {
			add(function+"("+args+")", invalid, rule)
		}
		add(function+"('{held}', '{1}', "+one+")", "", "")
		add(function+"('{held,NULL,unknown}', '{NULL,NULL,1}', ARRAY["+id+", NULL, "+id+"])", "", "")
		add(function+"(ARRAY['', "+long+"], '{1,-1}', "+two+")", "", "")
	}
	add("renew_leases(NULL, NULL, NULL, NULL)", "", "")
	add("renew_leases('{held,NULL,free}', '{1}', "+one+", '{0,NULL}')", "", "")
	add("renew_leases('{held}', '{1}', ARRAY["+noID+"], '{0}')", "", "")
	add("own_lease('held', 1, "+id+", "+id+")", "", "")
	add("own_lease(NULL, NULL, NULL, NULL)", "", "")

	// What all of a call have in common is refused; what one alone has is not answered.
	for _, tc := range []struct{ session, holder, ttl, says string }{
		{id, "NULL", "'1 s'", "holder is NULL"}, {id, "''", "'1 s'", "holder is 0 bytes"}, {id, "repeat('x', 257)", "'1 s'", "holder is 257 bytes"},
		{id, "'h'", "NULL", "ttl is NULL"}, {id, "'h'", "'99 ms'", "ttl is 00:00:00.099"}, {id, "'h'", "'25 hours'", "ttl is 25:00:00"}, {"NULL", "'h'", "'1 s'", "session_id"},
	} {
		for _, name := range []string{"new", "free"} {
			add("acquire_many('{"+name+"}', "+one+", '{NULL}', "+tc.session+", "+tc.holder+", "+tc.ttl+")", invalid, tc.says)
		}
	}
	add(many("ARRAY[NULL, '', "+long+"]", "ARRAY["+id+", "+id+", "+id+"]", "'{NULL,NULL,NULL}'"), "", "")
	add(many("'{new,free}'", "'{NULL,NULL}'", "'{NULL,NULL}'"), "", "")

	// A prune in steps.
	for _, limit := range []string{"0", "-1", "100001", "NULL"} {
		add("prune_locks('1 day', "+limit+")", invalid, "limit is "+limit+": it must be from 1 to 100000")
	}
	add("prune_locks(NULL, 10)", invalid, "idle is NULL: it must not be negative")
	add("prune_locks('-1 s', 10)", invalid, "idle is -00:00:01")
	for _, after := range []string{"''", "NULL", "'zzz'"} {
		add("prune_locks('1 day', 10, "+after+")", "", "")
	}

	before := rows(t, conn)
	for _, tc := range all {
		answer, err := caller.Exec(t.Context(), "SELECT * FROM pglock."+tc.call)
		checkState(t, tc.call, err, tc.state, tc.says)
		if function, _, _ := strings.Cut(tc.call, "("); tc.state == "" && answer.RowsAffected() != 0 && !slices.Contains([]string{"renew_leases", "own_lease", "prune_locks"}, function) {
			t.Errorf("%s answers for %d", tc.call, answer.RowsAffected())
		}
		if after := rows(t, conn); after != before {
			t.Fatalf("%s: rows before:\n%s\nafter:\n%s", tc.call, before, after)
		}
	}
	// Among others that are good, too.
	var answered string
	if err := caller.QueryRow(t.Context(), "SELECT string_agg(n || ' ' || granted, ',' ORDER BY n) FROM pglock."+many("ARRAY[NULL, 'new', '', 'held', 'free', "+long+", 'free']",
		"ARRAY["+id+", gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), NULL, "+id+", gen_random_uuid()]", "array_fill(NULL::uuid, ARRAY[7])")).Scan(&answered); err != nil {
		t.Fatal(err)
	}
	if answered != "2 true,4 false,7 true" {
		t.Errorf("acquire_many of good ones and bad ones: %s", answered)
	}
}
