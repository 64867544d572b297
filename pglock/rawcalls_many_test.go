package pglock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// grantIDOf is the secret of a lease, as SQL.
func grantIDOf(t *testing.T, conn *pgx.Conn, name string) (id string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT quote_literal(grant_id) || '::uuid' FROM pglock.locks WHERE name = $1",
		name).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// manyOf is a call of acquire_leases for one name, with right arguments except the named ones.
func manyOf(name string, change ...string) string {
	args := []struct{ what, right string }{{"names", "ARRAY[" + name + "]"}, {"grants", "ARRAY[" + someID + "]"},
		{"session", someID}, {"holders", "ARRAY['h']"},
		{"ttls", "ARRAY['1 s'::interval]"}, {"metadata", "ARRAY[NULL::jsonb]"}, {"retries", "ARRAY[false]"},
		{"modes", "ARRAY['exclusive']"}, {"limits", "ARRAY[NULL::int]"},
		{"waits", "ARRAY[false]"}, {"session ttl", "'10 s'"}, {"owners", "ARRAY[NULL::uuid]"},
		{"nested", "ARRAY[false]"}}
	values := make([]string, len(args))
	for i, arg := range args {
		values[i] = arg.right
		for _, c := range change {
			if what, value, named := strings.Cut(c, " = "); named && what == arg.what {
				values[i] = value
			}
		}
	}
	return "acquire_leases(" + strings.Join(values, ", ") + ")"
}

func TestI11_RefusedSQLCallsForManyChangeNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, caller := db.Conn(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	c := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "held")
	must.Do(t, mustAcquire(t, c, "free").Release(t.Context()))
	mustAcquire(t, c, "readers", pglock.WithShared())
	type refused struct {
		call  string
		state string // "" for an answer that refuses without an error
		says  string
	}
	var all []refused
	add := func(call, state, says string) { all = append(all, refused{call, state, says}) }
	id, long, heldID := someID, "repeat('x', 513)", grantIDOf(t, conn, "held")

	// Bad arguments are refused by whatever way they would go.
	for _, name := range []string{"'new'", "'free'", "'held'", "'readers'"} {
		for _, more := range []string{"", ", p_wait => true", ", p_retry => true"} {
			lease := func(grant, session, holder, ttl, metadata string) string {
				return "acquire_lease(" + name + ", " + grant + ", " + session + ", " + holder + ", " + ttl + ", " +
					metadata + more + ")"
			}
			add(lease("NULL", id, "'h'", "'1 s'", "NULL"), invalid, "grant_id")
			add(lease(id, "NULL", "'h'", "'1 s'", "NULL"), invalid, "session_key")
			add(lease(id, id, "NULL", "'1 s'", "NULL"), invalid, "holder is NULL")
			add(lease(id, id, "''", "'1 s'", "NULL"), invalid, "holder is 0 bytes long: it must have 1 to 256")
			add(lease(id, id, "repeat('x', 257)", "'1 s'", "NULL"), invalid, "holder is 257 bytes")
			add(lease(id, id, "'h'", "NULL", "NULL"), invalid, "ttl is NULL")
			add(lease(id, id, "'h'", "'1 s'", "NULL, p_nested => NULL"), invalid, "nested is NULL: it must be true "+
				"or false")
			if more == "" {
				const says = "retry or wait is NULL: it must be true or false"
				add(lease(id, id, "'h'", "'1 s'", "NULL, p_wait => NULL"), invalid, says)
				add(lease(id, id, "'h'", "'1 s'", "NULL, p_retry => NULL, p_wait => true"), invalid, says)
			}
			add(lease(id, id, "'h'", "'99 ms'", "NULL"), invalid, "ttl is 00:00:00.099: it must be from 100 ms to 24 "+
				"hours")
			add(lease(id, id, "'h'", "'-1 s'", "NULL"), invalid, "ttl is -00:00:01")
			add(lease(id, id, "'h'", "'24:00:00.000001'", "NULL"), invalid, "ttl is 24:00:00.000001")
			add(lease(id, id, "'h'", "'1 s'", "to_jsonb(repeat('x', 16400))"), invalid, "metadata is 16402 bytes")
		}
		for _, waits := range []string{"", "waits = ARRAY[true]"} {
			add(manyOf(name, waits, "session = NULL"), invalid, "session_key")
			add(manyOf(name, waits, "grants = ARRAY[NULL::uuid]"), invalid, "grant_id")
			add(manyOf(name, waits, "holders = ARRAY['']"), invalid, "holder is 0 bytes")
			add(manyOf(name, waits, "holders = '{NULL}'"), invalid, "holder is NULL")
			add(manyOf(name, waits, "ttls = '{NULL}'"), invalid, "ttl is NULL")
			add(manyOf(name, waits, "ttls = '{-1 s}'"), invalid, "ttl is -00:00:01")
			add(manyOf(name, waits, "modes = '{NULL}'"), invalid, "mode is NULL")
			add(manyOf(name, waits, "modes = '{nonsense}'"), invalid, "mode is 'nonsense'")
			add(manyOf(name, waits, "limits = '{2}'"), invalid, "limit is 2 with mode exclusive")
			add(manyOf(name, waits, "metadata = ARRAY[to_jsonb(repeat('x', 16400))]"), invalid,
				"metadata is 16402 bytes")
			add(manyOf(name, waits, "session ttl = '-1 s'"), invalid, "session ttl is -00:00:01")
			add(manyOf(name, waits, "session ttl = NULL"), invalid, "session ttl is NULL")
			add(manyOf(name, waits, "retries = '{NULL}'"), invalid, "retry or wait is NULL: it must be true or false")
			add(manyOf(name, "", "waits = '{NULL}'"), invalid, "retry or wait is NULL: it must be true or false")
			add(manyOf(name, waits, "nested = '{NULL}'"), invalid, "nested is NULL: it must be true or false")
			add(manyOf(name, waits, "session ttl = '24:00:00.000001'"), invalid, "session ttl is 24:00:00.000001")
			for _, array := range []string{"names", "grants", "holders", "ttls", "metadata", "retries", "modes",
				"limits", "owners", "nested"} {
				add(manyOf(name, waits, array+" = NULL"), invalid, "elements: they must have the same number, from 1 "+
					"to 10000")
				add(manyOf(name, waits, array+" = '{}'"), invalid, "elements: they must have the same number, from 1 "+
					"to 10000")
			}
		}
	}
	for _, name := range []string{"NULL", "''", long} {
		for _, call := range []string{"acquire_lease(" + name + ", " + id + ", " + id + ", 'h', '1 s')",
			"acquire_lease(" + name + ", " + id + ", " + id + ", 'h', '1 s', p_wait => true)",
			manyOf(name + "::text"), manyOf(name+"::text", "waits = ARRAY[true]")} {
			add(call, invalid, "name is ")
		}
	}

	// Arrays that do not fit, of every call for many.
	tooMany := func(element string) string { return "array_fill(" + element + ", ARRAY[10001])" }
	one, two := "ARRAY["+id+"]", "ARRAY["+id+", "+id+"]"
	const rule = "they must have the same number, from 1 to 10000"
	for _, function := range []string{"release_leases", "check_leases", "renew_leases"} {
		for _, args := range []string{"NULL, NULL, NULL, NULL", "'{}', '{}', '{}', '{}'", "'{held}', NULL, " + one +
			", '{0}'", "NULL, '{1}', " + one + ", '{0}'", "'{held}', '{1}', NULL, '{0}'",
			"'{held}', '{1}', " + one + ", NULL", "'{held,free}', '{1}', " + one + ", '{0}'", "'{held}', '{1,2}', " +
				one + ", '{0}'", "'{held}', '{1}', " + two + ", '{0}'", "'{held}', '{1}', " + one + ", '{0,1}'",
			tooMany("'held'::text") + ", " + tooMany("1::bigint") + ", " + tooMany(id) + ", " + tooMany("0")} {
			add(function+"("+args+")", invalid, rule)
		}
		add(function+"('{held}', '{1}', "+one+", '{0}')", "", "")
		add(function+"('{held,NULL,unknown}', '{NULL,NULL,1}', ARRAY["+id+", NULL, "+id+"], '{0,0,0}')", "", "")
		if function != "renew_leases" { // of one lease it is whichever
			add(function+"('{held}', '{1}', "+one+", '{NULL}')", "", "")
		} else {
			add(function+"('{held}', '{1}', "+one+", '{NULL}')", invalid, "slot is NULL: it must be that of the lease")
		}
		add(function+"(ARRAY['', "+long+"], '{1,-1}', "+two+", '{-1,4711}')", "", "")
		add(function+"('{held,held}', '{1,2}', ARRAY["+id+", "+heldID+"], '{0,0}')", "", "")
	}
	for _, args := range []string{"NULL, NULL", "'{}', '{}'", "'{held}', NULL", "NULL, " + one, "'{held,free}', " + one,
		"'{held}', " + two, tooMany("'held'::text") + ", " + tooMany(id)} {
		add("give_up("+id+", "+args+")", invalid, rule)
		add("give_up("+id+", "+args+", true)", invalid, rule)
	}

	// A prune in steps.
	for _, limit := range []string{"0", "-1", "100001", "NULL"} {
		add("prune_locks('1 day', "+limit+")", invalid, "limit is "+limit+": it must be from 1 to 100000")
	}
	add("prune_locks(NULL, 10)", invalid, "idle is NULL: it must be from 0 to 1000 years")
	add("prune_locks('-1 s', 10)", invalid, "idle is -00:00:01")
	for _, after := range []string{"''", "NULL", "'zzz'"} {
		add("prune_locks('1 day', 10, "+after+")", "", "")
	}

	before := rows(t, conn)
	for i, tc := range all {
		_, err := caller.Exec(t.Context(), "SELECT * FROM pglock."+tc.call)
		checkState(t, tc.call, err, tc.state, tc.says)
		if i%16 < 15 && i < len(all)-1 {
			continue
		}
		if after := rows(t, conn); after != before {
			t.Fatalf("%s, or one of the fifteen before it: rows before:\n%s\nafter:\n%s", tc.call, before, after)
		}
	}
}

// Every lease of a call for many has its own answer, in the order in which they were named, whatever the others are.
func TestEveryLeaseOfACallForManyHasItsOwnAnswer(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	c := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "b held")
	must.Do(t, mustAcquire(t, c, "a free").Release(t.Context()))
	free, held, unknown := grantIDOf(t, conn, "a free"), grantIDOf(t, conn, "b held"), someID
	all := "(ARRAY['unknown', 'b held', 'a free', 'b held'], ARRAY[1, 1, 2, 1], ARRAY[" +
		strings.Join([]string{unknown, held, free, unknown}, ", ") + "], ARRAY[0, 0, 0, 0])"
	for _, tc := range []struct{ sql, want string }{
		{"SELECT string_agg(coalesce(reason, 'held'), ', ' ORDER BY n) FROM pglock.check_leases" + all,
			"unknown, held, released, unknown"},
		{"SELECT string_agg(outcome, ', ' ORDER BY n) FROM pglock.renew_leases" + all, "unknown, renewed, released, " +
			"unknown"},
		{"SELECT string_agg(released::text, ', ' ORDER BY n) FROM pglock.release_leases" + all,
			"false, true, false, false"},
		{"SELECT string_agg(coalesce(reason, 'held'), ', ' ORDER BY n) FROM pglock.check_leases" + all,
			"unknown, released, released, unknown"},
		{`SELECT string_agg(format('%s %s %s', granted, which, more ->> 'holder'), ', ' ORDER BY n) FROM (SELECT *, dense_rank() OVER (ORDER BY token) AS which FROM pglock.acquire_leases(ARRAY['new', 'b held', 'a free', 'a free', 'new'],
			ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 5)), ` + someID +
			`, '{1,2,3,4,5}', array_fill('1 h'::interval, ARRAY[5]), array_fill(NULL::jsonb, ARRAY[5]), array_fill(false, ARRAY[5]),
			array_fill('exclusive'::text, ARRAY[5]), array_fill(NULL::int, ARRAY[5]), array_fill(false, ARRAY[5]), '10 s', array_fill(NULL::uuid, ARRAY[5]), array_fill(false, ARRAY[5]))) a`,
			"t 2 , t 3 , t 1 , f 1 3, f 2 1"},
	} {
		var got string
		if err := conn.QueryRow(t.Context(), tc.sql).Scan(&got); err != nil || got != tc.want {
			t.Errorf("%s: %q, %v; want %q", tc.sql, got, err, tc.want)
		}
	}
}

// One bad request undoes the others of its call, also those that were granted before it.
func TestI11_OneBadRequestOfACallForManyUndoesTheOthers(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, caller := db.Conn(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	c := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "held")
	for _, name := range []string{"free", "used"} {
		must.Do(t, mustAcquire(t, c, name).Release(t.Context()))
	}
	mustAcquire(t, c, "places", pglock.WithLimit(2))
	used := grantIDOf(t, conn, "used")
	but := func(all string) string { // a token that was drawn stays drawn
		before, after, _ := strings.Cut(all, "pglock.fencing_token_seq:")
		_, after, _ = strings.Cut(after, "accounts:")
		return before + after
	}
	before := but(rows(t, conn))
	four := func(element string) string { return "ARRAY[" + strings.Repeat(element+", ", 3) + element + "]" }
	for _, waits := range []string{"false", "true"} {
		good := []string{"names = ARRAY['new', 'free', 'held', 'used']", "grants = " + four("gen_random_uuid()"),
			"holders = " + four("'h'"), "ttls = " + four("'1 s'::interval"),
			"metadata = " + four("NULL::jsonb"), "retries = " + four("false"), "modes = " + four("'exclusive'"),
			"limits = " + four("NULL::int"), "waits = " + four(waits),
			"owners = " + four("NULL::uuid"), "nested = " + four("false")}
		for _, tc := range []struct {
			bad         []string
			state, says string
		}{
			{[]string{"holders = ARRAY['h', 'h', 'h', '']"}, invalid, "holder is 0 bytes"},
			{[]string{"names = ARRAY['new', 'free', 'held', NULL]"}, invalid, "name is NULL"},
			{[]string{"modes = ARRAY['exclusive', 'exclusive', 'exclusive', NULL]"}, invalid, "mode is NULL"},
			{[]string{"grants = ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), " + used + "]"}, "LK008",
				"used before"},
			{[]string{"names = ARRAY['new', 'free', 'held', 'places']", "modes = ARRAY['exclusive', 'exclusive', " +
				"'exclusive', 'limit']", "limits = ARRAY[NULL, NULL, NULL, 3]"}, "LK010", "limit 2"},
		} {
			call := manyOf("", append(good, tc.bad...)...)
			_, err := caller.Exec(t.Context(), "SELECT * FROM pglock."+call)
			checkState(t, call, err, tc.state, tc.says)
			if after := but(rows(t, conn)); after != before {
				t.Fatalf("%s: rows before:\n%s\nafter:\n%s", call, before, after)
			}
		}
	}
}

// Another connection of the session may write its row after the snapshot: the level is what is wrong, and not the row.
func TestI19_ManyRequestsInAFrozenSnapshotAreRefusedForTheirLevel(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, caller := db.Conn(t), db.Conn(t)
	execute(t, caller, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	execute(t, caller, "SELECT FROM pglock.locks")
	execute(t, conn, "SELECT * FROM pglock.look("+someID+", 'h', '10 s')")
	_, err := caller.Exec(t.Context(), "SELECT * FROM pglock."+manyOf("'new'", "waits = ARRAY[true]"))
	checkState(t, "acquire_leases", err, "LK005", "REPEATABLE READ")
}
