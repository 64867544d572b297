package pglock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	someID  = "'11111111-2222-3333-4444-555555555555'::uuid"
	noID    = "NULL::uuid"
	invalid = "22023"
)

func TestI11_RefusedSQLCallsChangeNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, caller := db.Conn(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	c := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "held")
	must.Do(t, mustAcquire(t, c, "free").Release(t.Context()))
	long := "repeat('x', 513)"
	id, heldID, freeID := someID, grantIDOf(t, conn, "held"), grantIDOf(t, conn, "free")
	before := rows(t, conn)
	for _, tc := range []struct {
		call  string
		state string // "" for an answer that refuses without an error
		says  string
	}{
		{"acquire_lease(NULL, " + id + ", " + id + ", 'h', '1 s')", invalid, "name is NULL"},
		{"acquire_lease('', " + id + ", " + id + ", 'h', '1 s')", invalid,
			"name is 0 bytes long: it must have 1 to 512"},
		{"acquire_lease(" + long + ", " + id + ", " + id + ", 'h', '1 s')", invalid, "name is 513 bytes"},
		{"acquire_lease('new', NULL, " + id + ", 'h', '1 s')", invalid, "grant_id"},
		{"acquire_lease('new', " + id + ", NULL, 'h', '1 s')", invalid, "session_key"},
		{"acquire_lease('new', " + id + ", " + id + ", NULL, '1 s')", invalid, "holder is NULL"},
		{"acquire_lease('new', " + id + ", " + id + ", '', '1 s')", invalid, "holder is 0 bytes"},
		{"acquire_lease('new', " + id + ", " + id + ", repeat('x', 257), '1 s')", invalid, "holder is 257 bytes"},
		{"acquire_lease('new', " + id + ", " + id + ", 'h', NULL)", invalid, "ttl is NULL"},
		{"acquire_lease('new', " + id + ", " + id + ", 'h', '99 ms')", invalid, "ttl is 00:00:00.099: it must be " +
			"from 100 ms to 24 hours"},
		{"acquire_lease('new', " + id + ", " + id + ", 'h', '-1 s')", invalid, "ttl"},
		{"acquire_lease('new', " + id + ", " + id + ", 'h', '24:00:00.000001')", invalid, "ttl is 24:00:00.000001"},
		{"acquire_lease('new', " + id + ", " + id + ", 'h', '1 month')", invalid, "ttl is 1 mon"},
		{"acquire_lease('new', " + id + ", " + id + ", 'h', '1 s', to_jsonb(repeat('x', 16400)))", invalid,
			"metadata is 16402 bytes"},
		{"acquire_lease('held', " + id + ", " + id + ", 'h', '1 s', NULL, NULL)", invalid, "retry or wait is NULL"},
		{"acquire_lease('held', " + id + ", " + id + ", 'h', '1 s', p_retry => true)", "", ""},
		{"acquire_subtree('new', " + id + ", " + id + ", 'h', '1 s', p_wait => NULL)", invalid,
			"retry or wait is NULL: it must be true or false"},
		{"acquire_subtree('held', " + id + ", " + id + ", 'h', '1 s', p_wait => NULL)", invalid, "retry or wait is"},
		{"acquire_subtree('new', " + id + ", " + id + ", 'h', '1 s', p_retry => NULL)", invalid, "retry or wait is"},
		{"acquire_subtree('new', " + id + ", " + id + ", 'h', '1 s', p_nested => NULL)", invalid, "nested is NULL"},
		{"renew_leases('{held}', '{NULL}', ARRAY[" + heldID + "], '{0}', '1 s')", "", ""},
		{"renew_leases('{held}', '{1}', '{NULL}', '{0}', '1 s')", "", ""},
		{"renew_leases('{held}', '{1}', ARRAY[" + id + "], '{0}', '1 s')", "", ""},
		{"renew_leases('{held}', '{2}', ARRAY[" + heldID + "], '{0}', '1 s')", "", ""},
		{"renew_leases('{held}', '{1}', ARRAY[" + heldID + "], '{1}', '1 s')", "", ""},
		{"renew_leases('{free}', '{2}', ARRAY[" + freeID + "], '{0}', '1 s')", "", ""},
		{"renew_leases('{unknown}', '{1}', ARRAY[" + id + "], '{0}', '1 s')", "", ""},
		{"renew_leases('{held}', '{1}', ARRAY[" + heldID + "], '{NULL}', '1 s')", invalid, "slot is NULL: it must be " +
			"that of the lease"},
		{"renew_leases(NULL, NULL, NULL, NULL, '1 s')", invalid, "they must have the same number, from 1 to 10000"},
		{"release_lease(NULL, NULL, NULL)", "", ""},
		{"release_lease('held', 1, " + id + ")", "", ""},
		{"release_lease('held', NULL, NULL)", "", ""},
		{"release_lease('held', 2, " + heldID + ")", "", ""},
		{"release_lease('held', 1, " + heldID + ", 1)", "", ""},
		{"release_lease('free', 2, " + freeID + ")", "", ""},
		{"give_up(" + id + ", ARRAY[NULL], ARRAY[" + id + "])", invalid, "name is NULL"},
		{"give_up(" + id + ", ARRAY[''], ARRAY[" + id + "])", invalid, "name is 0 bytes"},
		{"give_up(" + id + ", ARRAY[" + long + "], ARRAY[" + id + "], true)", invalid, "name is 513 bytes"},
		{"give_up(" + id + ", '{held}', ARRAY[" + noID + "])", invalid, "grant_id"},
		{"give_up(" + id + ", '{new}', ARRAY[" + noID + "], true)", invalid, "grant_id"},
		{"give_up(" + id + ", '{new,held}', ARRAY[" + id + ", NULL], true)", invalid, "grant_id"},
		{"give_up(" + id + ", '{held}', ARRAY[" + id + "], NULL)", invalid, "spend"},
		{"give_up(NULL, '{held}', ARRAY[" + id + "])", invalid, "session_key"},
		{"give_up(" + id + ", '{held,new,free}', ARRAY[" + id + ", " + id + ", " + id + "])", "", ""},
		{"give_up(" + id + ", '{free}', ARRAY[" + freeID + "])", "", ""},
		{"break_lock(NULL, 'r', 'a')", invalid, "name is NULL"},
		{"break_lock(" + long + ", 'r', 'a')", invalid, "name is 513 bytes"},
		{"break_lock('held', NULL, 'a')", invalid, "reason is NULL"},
		{"break_lock('held', '', 'a')", invalid, "reason is ''"},
		{"break_lock('held', E' \\t\\n', 'a')", invalid, "reason"},
		{"break_lock('held', repeat('x', 1025), 'a')", invalid, "1024 bytes"},
		{"break_lock('held', 'r', NULL)", invalid, "actor is NULL"},
		{"break_lock('held', 'r', repeat('x', 257))", invalid, "actor is 257 bytes"},
		{"break_lock('held', 'r', 'a', 4711)", "LK006", "held with token 1, not 4711"},
		{"break_lock('free', 'r', 'a')", "LK006", "not held"},
		{"break_lock('unknown', 'r', 'a')", "LK006", "not held"},
		{"fence(NULL, NULL, NULL)", invalid, "name, token and grant_id are NULL, NULL and NULL"},
		{"fence('held', 1, " + id + ", '')", invalid, "resource is 0 bytes"},
		{"fence('held', 1, " + id + ", " + long + ")", invalid, "resource is 513 bytes"},
		{"fence('held', 1, " + id + ")", "LK003", ""},
		{"fence('held', NULL, NULL)", invalid, "none of them may be NULL"},
		{"fence('held', -5, " + id + ")", invalid, "the token must be positive"},
		{"fence('held', 1, " + id + ", NULL, NULL, " + id + ")", "LK007", "another database"},
		{"fence('free', 2, " + freeID + ")", "LK003", "released"},
		{"fence_all('{held,free}', '{1,2}', ARRAY[" + heldID + ", " + freeID + "])", "LK003", "released"},
		{"fence_all('{held}', '{1,2}', ARRAY[" + heldID + "])", invalid, "the arrays have 1, 2, 1, 1, 1 elements"},
		{"fence_all(NULL, NULL, NULL)", invalid, "the arrays have 0, 0, 0"},
		{"fence_all('{held,held}', '{1,1}', ARRAY[" + heldID + ", " + heldID + "])", invalid,
			"resource 'held' is named twice"},
		{"seal(NULL)", invalid, "resources is 0 of them: it must be 1 to 10000"},
		{"seal('{}')", invalid, "be 1 to 10000"},
		{"seal('{held}')", "LK009", "not under the fence of 'held'"},
		{"seal('{held,NULL}')", "LK009", "not under the fence"},
		{"once(NULL, 'held', 1, " + heldID + ")", invalid, "key is NULL"},
		{"once('k', 'held', 1, " + heldID + ", NULL, '294276-12-31 23:59:59+00', '1 day')", invalid,
			"a time of the years 1 to 9999"},
		{"once('k', 'held', 1, " + heldID + ", NULL, '-infinity', '1 day')", invalid, "a time of the years 1 to 9999"},
		{"once('k', 'held', 1, " + heldID + ", NULL, now(), '101 years')", invalid, "1 s to 100 years"},
		{"once('k', 'free', 2, " + freeID + ")", "LK003", "released"},
		{"outcome(NULL, " + id + ", " + id + ")", invalid, "be a UUID"},
		{"outcome(" + id + ", NULL, " + id + ")", invalid, "be a UUID"},
		{"outcome(" + id + ", " + id + ", NULL)", invalid, "database_id is NULL: it must be a UUID"},
		{"outcome(" + id + ", " + id + ", " + id + ")", "LK007", "the receipt belongs to another database"},
		{"list_locks(NULL, NULL, NULL)", "", ""},
		{"list_locks('', true, '', NULL)", "", ""},
		{"list_locks('', true, '', -1)", invalid, "limit is -1: it must be from 1 to 1000000"},
		{"list_locks(p_older => '1001 years')", invalid, "older is 1001 years: it must be from 0 to 1000 years"},
		{"list_locks(p_older => '-1 s')", invalid, "older is -00:00:01: it must be from 0 to 1000 years"},
		{"list_history('', -1)", invalid, "limit is -1: it must be from 1 to 1000000"},
		{"list_fences('', 0)", invalid, "limit is 0: it must be from 1 to 1000000"},
		{"list_fences(p_order => 'age', p_limit => NULL)", invalid, "limit is NULL: it must be from 1 to 10000"},
		{"list_fences(p_order => 'age', p_limit => 10001)", invalid, "limit is 10001: it must be from 1 to 10000"},
		{"list_fences(p_order => 'waiting')", invalid, "order is 'waiting': it must be name or age"},
		{"list_fences(p_order => NULL)", invalid, "order is NULL: it must be name or age"},
		{"statistics(-1)", invalid, "top is -1: it must be from 0 to 100000"},
		{"get_lock(NULL)", "", ""},
		{"list_fences(NULL)", "", ""},
		{"prune_locks(NULL)", invalid, "idle is NULL"},
		{"prune_locks('-1 s')", invalid, "idle is -00:00:01: it must be from 0 to 1000 years"},
		{"prune_locks('-1 year 360 days')", invalid, "idle is -1 years +360 days: it must be from 0 to 1000 years, " +
			"no part of it negative"}, // the clock less this is a time to come
		{"prune_locks('1 day -1 s')", invalid, "idle is 1 day -00:00:01"},
		{"prune_locks('1 month -29 days')", invalid, "idle is 1 mon -29 days"},
		{"prune_history('-1 s')", invalid, "older is -00:00:01"},
		{"prune_locks('1 s', 0)", invalid, "limit is 0: it must be from 1 to 100000"},
		{"prune_history('1 s', 100001)", invalid, "limit is 100001: it must be from 1 to 100000"},
		{"renew_leases('{held}', '{1}', ARRAY[" + heldID + "], '{0}', '25 h')", invalid, "wait is 25:00:00: it must " +
			"be from 0 to 24 hours"},
		{"renew_leases('{held}', '{1}', ARRAY[" + heldID + "], '{0}', '-1 s')", invalid, "wait is -00:00:01"},
		{"set_history('a', p_keep => '2 months -59 days')", invalid, "keep is 2 mons -59 days"},
		{"set_history('a', p_keep => '1 h')", invalid, "keep is 01:00:00: it must be from 1 day to 36525 days"},
		{"list_waiters('', 10, '', 0, -1)", invalid, "after_place is -1: it must be from 0 to"},
		{"break_session(" + id + ", 'r', 'a', 10001)", invalid, "limit is 10001: it must be from 1 to 10000"},
		{"list_locks(p_order => 'age', p_limit => 0)", invalid, "limit is 0: it must be from 1 to 10000"},
		{"list_locks(p_order => 'leases')", invalid, "it must be name, age, recent, waiting or expiry"},
		{"list_waiters(p_order => 'age', p_limit => 0)", invalid, "limit is 0: it must be from 1 to 10000"},
		{"list_waiters(p_order => '')", invalid, "order is '': it must be name or age"},
		{"list_sessions(0)", invalid, "limit is 0: it must be from 1 to 10000"},
		{"list_sessions(10001)", invalid, "limit is 10001: it must be from 1 to 10000"},
		{"list_sessions(p_order => 'expiry')", invalid, "it must be name, age, leases or waiting"},
		{"sweep(NULL)", invalid, "limit is NULL"},
		{"sweep(0)", invalid, "limit is 0: it must be from 1 to 100000"},
		{"sweep(0, false)", invalid, "limit is 0: it must be from 1 to 100000"},
		{"sweep(1, true, '-1 s')", invalid, "every is -00:00:01: it must be from 0 to 1000 years"},
		{"sweep(p_history => false)", "", ""},
		{"end_session(NULL)", "", ""},
		{"end_session(" + id + ")", "", ""},
	} {
		_, err := caller.Exec(t.Context(), "SELECT * FROM pglock."+tc.call)
		checkState(t, tc.call, err, tc.state, tc.says)
		if after := rows(t, conn); after != before {
			t.Fatalf("%s: rows before:\n%s\nafter:\n%s", tc.call, before, after)
		}
	}
}

func TestI11_RefusedSQLCallsOfTheQueueChangeNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, caller := db.Conn(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	c := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "held")
	mustAcquire(t, c, "places", pglock.WithLimit(2))
	owner := pgtest.One[string](t, conn, "SELECT quote_literal(owner_id) || '::uuid' FROM pglock.locks WHERE name = "+
		"'held'")
	// A ticket of a session that is alive.
	execute(t, conn, "SELECT pglock.acquire_lease('held', gen_random_uuid(), gen_random_uuid(), 'w', '1 s', p_wait "+
		"=> true, p_session_ttl => '1 h')")
	execute(t, conn, "SELECT pglock.acquire_lease('queued', gen_random_uuid(), gen_random_uuid(), 'w', '1 h')")
	execute(t, conn,
		`SELECT pglock.acquire_lease('queued', gen_random_uuid(), gen_random_uuid(), 'w', '1 s', p_mode => 'limit', p_capacity => 5,
		p_wait => true, p_session_ttl => '1 h')`)
	long, id := "repeat('x', 513)", someID
	type refused struct {
		call  string
		state string // "" for an answer that refuses without an error
		says  string
	}
	var all []refused
	for _, wait := range []string{"false", "true"} {
		acquire := func(name, args, state, says string) {
			all = append(all, refused{"acquire_lease(" + name + ", " + id + ", " + id + ", 'h', '1 s', p_wait => " +
				wait + args + ")", state, says})
		}
		for _, name := range []string{"'new'", "'held'", "'places'"} {
			acquire(name, ", p_mode => 'nonsense'", invalid,
				"mode is 'nonsense': it must be exclusive, shared or limit")
			acquire(name, ", p_mode => ''", invalid, "mode is ''")
			acquire(name, ", p_mode => NULL", invalid, "mode is NULL")
			acquire(name, ", p_mode => 'limit'", invalid, "limit is NULL with mode limit: it must be from 1 to 1000")
			acquire(name, ", p_mode => 'limit', p_capacity => 0", invalid, "limit is 0")
			acquire(name, ", p_mode => 'limit', p_capacity => -1", invalid, "limit is -1")
			acquire(name, ", p_mode => 'limit', p_capacity => 1001", invalid, "limit is 1001 with mode limit: it "+
				"must be from 1 to 1000")
			acquire(name, ", p_capacity => 2", invalid, "limit is 2 with mode exclusive: it must be from 1 to 1000 "+
				"with mode limit, else NULL")
			acquire(name, ", p_mode => 'shared', p_capacity => 2", invalid, "limit is 2 with mode shared: it must be "+
				"from 1 to 1000 with mode limit, else NULL")
			acquire(name, ", p_mode => 'shared', p_session_ttl => NULL", invalid, "session ttl is NULL")
			acquire(name, ", p_mode => 'shared', p_session_ttl => '99 ms'", invalid, "session ttl is 00:00:00.099: "+
				"it must be from 100 ms to 24 hours")
			acquire(name, ", p_mode => 'shared', p_session_ttl => '25 hours'", invalid, "session ttl is 25:00:00")
			acquire(name, ", p_session_ttl => NULL", invalid, "session ttl is NULL")
			acquire(name, ", p_session_ttl => '-1 s'", invalid, "session ttl is -00:00:01")
		}
		if wait == "true" { // a try is told who holds it
			acquire("'queued'", ", p_mode => 'limit', p_capacity => 3", "LK010", "limit of lock 'queued' is 3: it is "+
				"in use with limit 5")
		}
		acquire("''", ", p_mode => 'shared'", invalid, "name is 0 bytes long")
		acquire(long, ", p_mode => 'limit', p_capacity => 2", invalid, "name is 513 bytes")
		acquire("'places'", ", p_mode => 'limit', p_capacity => 3", "LK010", "limit of lock 'places' is 3: it is in "+
			"use with limit 2")
		acquire("'places'", ", p_mode => 'limit', p_capacity => 1", "LK010", "limit of lock 'places' is 1: it is in "+
			"use with limit 2")
		acquire("'held'", ", p_owner_id => "+owner+", p_nested => true", "LK004", "'held' is held by the one who "+
			"asks for it, with token 1")
		acquire("'held'", ", p_mode => 'shared', p_owner_id => "+owner+", p_nested => true", "LK004", "token 1")
	}
	all = append(all, []refused{
		{"acquire_lease('held', " + id + ", " + id + ", 'h', '1 s', p_mode => 'shared')", "", ""},
		{"acquire_lease('held', " + id + ", " + id + ", 'h', '1 s', p_mode => 'limit', p_capacity => 7)", "", ""},
		{"acquire_lease('places', " + id + ", " + id + ", 'h', '1 s')", "", ""},
		{"release_lease(NULL, NULL, NULL, NULL)", "", ""},
		{"release_lease('held', 1, " + id + ")", "", ""},
		{"release_lease('held', 1, " + noID + ", 0)", "", ""},
		{"release_lease('places', 2, " + id + ", 1)", "", ""},
		{"release_lease('places', 2, " + id + ", 4711)", "", ""},
		{"give_up(" + id + ", '{held,places,queued}', ARRAY[" + id + ", " + id + ", " + id + "])", "", ""},
		{"announce(NULL, NULL)", invalid, "they must have the same number, from 1 to 10000"},
		{"announce('{}', '{}')", invalid, "they must have the same number, from 1 to 10000"},
		{"announce(ARRAY['held', NULL, 'new'], ARRAY[0, NULL])", invalid, "the arrays have 3, 2 elements"},
		{"announce(array_fill('held'::text, ARRAY[10001]), array_fill(0, ARRAY[10001]))", invalid,
			"they must have the same number, from 1 to 10000"},
		{"announce(ARRAY['held', NULL, 'new'], ARRAY[0, NULL, 0])", "", ""},
		{"list_waiters(NULL)", "", ""},
		{"list_waiters('', NULL)", "", ""},
		{"list_waiters('', -1)", invalid, "limit is -1: it must be from 1 to 1000000"},
		{"list_waits('held', -1)", invalid, "limit is -1: it must be from 1 to 1000000"},
		{"list_obstacles(NULL)", "", ""},
		{"list_obstacles('held', 0)", invalid, "limit is 0: it must be from 1 to 1000000"},
		{"list_obstructed(NULL)", "", ""},
		{"list_obstructed('held', 0)", invalid, "limit is 0: it must be from 1 to 1000000"},
		{"watch(NULL, '1 s')", invalid, "name is NULL"},
		{"watch('', '1 s')", invalid, "name is 0 bytes"},
		{"watch(" + long + ", '1 s')", invalid, "name is 513 bytes"},
		{"watch('new', NULL)", invalid, "is NULL"},
		{"watch('new', '-1 s')", invalid, "-00:00:01"},
		{"watch('new', '25 hours')", invalid, "25:00:00"},
		{"sweep(p_history => false)", "", ""},
		{"break_lock('places', 'r', 'a', 1)", "LK006", "held with token"},
	}...)
	before := rows(t, conn)
	for _, tc := range all {
		_, err := caller.Exec(t.Context(), "SELECT * FROM pglock."+tc.call)
		checkState(t, tc.call, err, tc.state, tc.says)
		if after := rows(t, conn); after != before {
			t.Fatalf("%s: rows before:\n%s\nafter:\n%s", tc.call, before, after)
		}
	}
}

func TestI11_LookRefusesASessionThatMakesNoSense(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, caller := db.Conn(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	before := rows(t, conn)
	for _, tc := range []struct{ args, says string }{
		{someID + ", NULL, '1 s'", "holder is NULL"},
		{someID + ", '', '1 s'", "holder is 0 bytes"},
		{someID + ", repeat('x', 257), '1 s'", "holder is 257 bytes"},
		{someID + ", 'h', NULL", "ttl is NULL"},
		{someID + ", 'h', '-1 s'", "ttl is -00:00:01"},
		{someID + ", 'h', '25 hours'", "ttl is 25:00:00"},
	} {
		_, err := caller.Exec(t.Context(), "SELECT * FROM pglock.look("+tc.args+")")
		checkState(t, "look("+tc.args+")", err, invalid, tc.says)
		if after := rows(t, conn); after != before {
			t.Fatalf("look(%s): rows before:\n%s\nafter:\n%s", tc.args, before, after)
		}
	}
}

func checkState(t *testing.T, call string, err error, state, says string) {
	t.Helper()
	var got string
	if pgErr, ok := err.(*pgconn.PgError); ok { //nolint:errorlint // straight from the driver
		got = pgErr.Code
	} else if err != nil {
		t.Errorf("%s: %v", call, err)
	}
	if got != state || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want SQLSTATE %q saying %q", call, err, state, says)
	}
}

func TestI11_FunctionsThatNeedAFreshSnapshotRefuseAFrozenOne(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, caller := db.Conn(t), db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	c := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Hour))
	mustAcquire(t, c, "held")
	must.Do(t, mustAcquire(t, c, "free").Release(t.Context()))
	heldID := grantIDOf(t, conn, "held")
	before := rows(t, conn)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, call := range []string{
			"acquire_lease('new', " + someID + ", " + someID + ", 'h', '1 s')", "acquire_lease('held', " + someID +
				", " + someID + ", 'h', '1 s')",
			"acquire_lease('held', " + someID + ", " + someID + ", 'h', '1 s', p_wait => true)",
			"acquire_lease('held', " + someID + ", " + someID + ", 'h', '1 s', p_retry => true)",
			"acquire_lease('free', " + someID + ", " + someID + ", 'h', '1 s')", manyOf("'new'"), manyOf("'free'"),
			manyOf("'held'", "waits = ARRAY[true]"),
			"renew_leases(ARRAY['held'], ARRAY[1], ARRAY[" + heldID + "], ARRAY[0], '1 s')",
			"renew_leases(ARRAY['held'], ARRAY[1], ARRAY[" + heldID + "], ARRAY[0])",
			"release_lease('held', 1, " + heldID + ")", "release_leases(ARRAY['held'], ARRAY[1], ARRAY[" + heldID +
				"], ARRAY[0])",
			"give_up(" + someID + ", ARRAY['held'], ARRAY[" + heldID + "])", "give_up(" + someID +
				", ARRAY['held'], ARRAY[" + someID + "], true)",
			"look(" + someID + ", 'h', '1 s')", "watch('held', '1 s')", "sweep()", "outcome(" + someID + ", " + someID +
				", pglock.database_id())",
			"break_lock('held', 'r', 'a')", "prune_locks()",
			"prune_locks('0', 10)",
		} {
			err := pgx.BeginTxFunc(t.Context(), caller, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "SELECT * FROM pglock."+call)
				return err
			})
			checkState(t, call, err, "LK005", "READ COMMITTED")
			if after := rows(t, conn); after != before {
				t.Fatalf("%s: rows before:\n%s\nafter:\n%s", call, before, after)
			}
		}
	}
}
