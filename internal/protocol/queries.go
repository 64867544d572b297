// Package protocol is the conversation between this library and the server: the statements, their arguments and
// answers, their execution on a connection, and the meaning of their errors. It knows no client.
package protocol

import (
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Queries are the statements of pglock: each calls one function, in one round trip. Every name in them is qualified,
// so that they mean the same under any search_path. Texts have casts, so that they need no parameter types and work
// with prepared statements off. Times travel as microseconds since 1970, because a time in text form depends on the
// session's DateStyle. migrations/schema says what each function locks, reads and returns.
type Queries struct {
	acquire, acquireMany, acquireSubtree                      string
	renewAll, look, ownTickets, renew, checkMany, timeline    string
	release, releaseMany, handOver, giveUp, endSession, sweep string
	announce, announceUnconfirmed, notify, mark               string

	// The results of these are for people, and are read where they are shown.
	Start, Watch, Get, BrokenGuards, Diagnose, Statistics, RecentEvents string
	List, Waiters, Fences, Sessions, HolderLives, Backends, Waits       string
	Obstacles, Obstructed                                               string
	BreakLock, BreakSession                                             string
	GetGranted, HandOvers, Suspects, Blocked                            string
	History, HistorySettings, SetHistory, Replay                        string
	ClockSteps                                                          string
}

// times finds {{at column}} in a query.
var times = regexp.MustCompile(`\{\{at ([\w.()]+)\}\}`)

// nulls is an array in which one value stands for NULL: a session with array_nulls off reads no NULL in the text of an
// array, and unprepared statements send texts.
func nulls(array, value string) string {
	return "pg_catalog.array_replace(" + array + ", " + value + ", NULL)"
}

// NewQueries gives the statements for a schema.
func NewQueries(schema string) *Queries {
	in := func(q string) string {
		q = strings.ReplaceAll(q, "{{info}}",
			`name, held, holder, session_id::pg_catalog.text, token, ttl_us, {{at acquired_at}}, {{at renewed_at}},
				{{at expires_at}}, {{at ended_at}}, remaining_us, metadata::pg_catalog.text, slot, mode, capacity, waiting, grants, slowest_us, longest_wait_us,
				subtree`)
		q = strings.ReplaceAll(q, "{{waiter}}",
			`name, ticket, place, mode, capacity, holder, session_id::pg_catalog.text, alive, ttl_us, {{at enqueued_at}},
				waiting_us, behind_ticket, behind_holder, metadata::pg_catalog.text, subtree, behind_name`)
		return times.ReplaceAllString(strings.ReplaceAll(q, "{{schema}}", pgx.Identifier{schema}.Sanitize()),
			"(EXTRACT(epoch FROM $1) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8")
	}
	// A statement that is a whole transaction may leave out the wait for the disk; a function never does that by
	// itself.
	const async = `pg_catalog.set_config('synchronous_commit', 'off', true)`
	return &Queries{
		Start: in(`SELECT schema_version, database_id::pg_catalog.text, isolation, read_only, sequence_ok, serves_from
			FROM {{schema}}.start_client()`),
		// A grant waits for the disk. A ticket does not: a crash that loses it has also ended its connection. The
		// last argument says that the statement is a whole transaction.
		acquire: in(`SELECT NULL::pg_catalog.int8, (a).granted, (a).token, (a).more::pg_catalog.text
			FROM (SELECT {{schema}}.acquire_lease($1::pg_catalog.text, $2::pg_catalog.uuid, $3::pg_catalog.uuid,
				$4::pg_catalog.text, $5::pg_catalog.interval, $6::pg_catalog.text::pg_catalog.jsonb, $7::pg_catalog.bool,
				$8::pg_catalog.text, $9::pg_catalog.int4, $10::pg_catalog.bool, $11::pg_catalog.interval,
				$12::pg_catalog.uuid, $13::pg_catalog.bool, true) OFFSET 0) f (a)`),
		acquireMany: in(`SELECT n, granted, token, more::pg_catalog.text
			FROM {{schema}}.acquire_leases($1::pg_catalog.text[], $2::pg_catalog.text[]::pg_catalog.uuid[], $3::pg_catalog.uuid,
				$4::pg_catalog.text[], $5::pg_catalog.text[]::pg_catalog.interval[], ` + nulls("$6::pg_catalog.text[]", "''") + `::pg_catalog.jsonb[],
				$7::pg_catalog.bool[], $8::pg_catalog.text[], ` + nulls("$9::pg_catalog.int4[]", "0") + `, $10::pg_catalog.bool[],
				$11::pg_catalog.interval, $12::pg_catalog.text[]::pg_catalog.uuid[], $13::pg_catalog.bool[], true)`),
		acquireSubtree: in(`SELECT NULL::pg_catalog.int8, (a).granted, (a).token, (a).more::pg_catalog.text
			FROM (SELECT {{schema}}.acquire_subtree($1::pg_catalog.text, $2::pg_catalog.uuid, $3::pg_catalog.uuid,
				$4::pg_catalog.text, $5::pg_catalog.interval, $6::pg_catalog.text::pg_catalog.jsonb, $7::pg_catalog.bool,
				$8::pg_catalog.text, $9::pg_catalog.int4, $10::pg_catalog.bool, $11::pg_catalog.interval,
				$12::pg_catalog.uuid, $13::pg_catalog.bool, true) OFFSET 0) f (a)`),
		renewAll: in(`SELECT n, outcome, {{at expires_at}}, remaining_us
			FROM {{schema}}.renew_leases($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[], $4::pg_catalog.int4[],
				NULL, ` + nulls("$5::pg_catalog.text[]", "''") + `::pg_catalog.interval[],
				` + nulls("$6::pg_catalog.text[]", "''") + `::pg_catalog.timestamptz[], true)`),
		look: in(`SELECT ticket, ahead, remaining_us, circle, served, kept
			FROM {{schema}}.look($1::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.interval, $4::pg_catalog.int8[])
			WHERE ` + async + ` IS NOT NULL`),
		ownTickets: in(`SELECT name, grant_id::pg_catalog.text FROM {{schema}}.own_tickets($1::pg_catalog.uuid, $2::pg_catalog.int8[])`),
		renew: in(`SELECT outcome, remaining_us, {{at expires_at}}
			FROM {{schema}}.renew_leases(ARRAY[$1::pg_catalog.text], ARRAY[$2::pg_catalog.int8], ARRAY[$3::pg_catalog.uuid],
				ARRAY[$4::pg_catalog.int4], $5::pg_catalog.interval,
				` + nulls("$6::pg_catalog.text[]", "''") + `::pg_catalog.interval[],
				` + nulls("$7::pg_catalog.text[]", "''") + `::pg_catalog.timestamptz[], true)`),
		checkMany: in(`SELECT n, reason, remaining_us
			FROM {{schema}}.check_leases($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[], $4::pg_catalog.int4[])`),
		timeline: in(`SELECT since_us FROM {{schema}}.timeline()`),
		// A release need not wait for the disk: if a crash loses it, the lease runs out by itself. But a release that
		// hands the lock over is a grant, and waits.
		release: in(`SELECT NULL::pg_catalog.int8, (a).released, (a).more::pg_catalog.text
			FROM (SELECT {{schema}}.release_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.uuid, $4::pg_catalog.int4, true) OFFSET 0) f (a)`),
		releaseMany: in(`SELECT n, released, more::pg_catalog.text
			FROM {{schema}}.release_leases($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[],
				$4::pg_catalog.int4[], true)`),
		handOver: in(`SELECT outcome, more::pg_catalog.text
			FROM {{schema}}.hand_over($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.uuid, $4::pg_catalog.text,
				$5::pg_catalog.bool)`),
		giveUp: in(`SELECT n, ended, place, token, more::pg_catalog.text
			FROM {{schema}}.give_up($1::pg_catalog.uuid, $2::pg_catalog.text[], $3::pg_catalog.text[]::pg_catalog.uuid[],
				$4::pg_catalog.bool, true)`),
		// The note need not wait for the disk: a crash that loses it has also ended the connection.
		mark: in(`SELECT {{schema}}.mark_connection($1::pg_catalog.uuid, $2::pg_catalog.int4, $3::pg_catalog.text, $4::pg_catalog.text,
				$5::pg_catalog.interval, $6::pg_catalog.text[])
			WHERE ` + async + ` IS NOT NULL`),
		endSession: in(`SELECT {{schema}}.end_session($1::pg_catalog.uuid), ` + async),
		sweep: in(`SELECT s.n IS NOT NULL, coalesce(s.n OPERATOR(pg_catalog.>=) 1000, false), ` + async + `
			FROM {{schema}}.sweep(1000, p_every => $1::pg_catalog.interval) AS s (n)`),
		// NOTIFY holds a lock of the whole cluster until its transaction ends, so that transaction must not wait for
		// the disk.
		announce: in(`SELECT a.told, ` + async + `
			FROM {{schema}}.announce($1::pg_catalog.text[], ` + nulls("$2::pg_catalog.int4[]", "-1") + `) AS a (told)`),
		// Behind a release, in one round trip, nothing says yet whether the standby has the grant: the wait for it may
		// have been cancelled. Nor does anything where the answer was lost. So where there is one, this tells nobody.
		announceUnconfirmed: in(`SELECT CASE
				WHEN pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.=) ''
				THEN {{schema}}.announce($1::pg_catalog.text[], ` + nulls("$2::pg_catalog.int4[]", "-1") + `) ELSE -1 END,
				` + async),
		notify: in(`SELECT pg_catalog.pg_notify($1::pg_catalog.text, $2::pg_catalog.text)::pg_catalog.text, ` + async),
		Watch: in(`SELECT {{info}}, w.channel, ` + async + `
			FROM {{schema}}.watch($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.interval) w`),
		Get:        in(`SELECT {{info}} FROM {{schema}}.get_lock($1::pg_catalog.text)`),
		GetGranted: in(`SELECT {{info}}, ticket FROM {{schema}}.get_lock($1::pg_catalog.text)`),
		HandOvers: in(`SELECT (
				SELECT pg_catalog.count(*) FROM {{schema}}.list_history($1::pg_catalog.text, 1000)
				WHERE kind OPERATOR(pg_catalog.=) 'handover'
					AND at OPERATOR(pg_catalog.>=) $2::pg_catalog.text::pg_catalog.timestamptz),
				coalesce(since OPERATOR(pg_catalog.<=) $2::pg_catalog.text::pg_catalog.timestamptz, false)
			FROM {{schema}}.history_settings()`),
		List: in(`SELECT {{info}} FROM {{schema}}.list_locks($1::pg_catalog.text, $2::pg_catalog.bool, $3::pg_catalog.text, $4::pg_catalog.int4,
				$5::pg_catalog.text, $6::pg_catalog.text, $7::pg_catalog.text::pg_catalog.uuid, $8::pg_catalog.text, $9::pg_catalog.bool,
				$10::pg_catalog.text::pg_catalog.interval, $11::pg_catalog.text, $12::pg_catalog.bool)`),
		Waiters: in(`SELECT {{waiter}} FROM {{schema}}.list_waiters($1::pg_catalog.text, $2::pg_catalog.int4, $3::pg_catalog.text, $4::pg_catalog.int8,
				$5::pg_catalog.int8, $6::pg_catalog.text, $7::pg_catalog.text, $8::pg_catalog.text, $9::pg_catalog.text::pg_catalog.uuid,
				$10::pg_catalog.text, $11::pg_catalog.text::pg_catalog.interval, $12::pg_catalog.text)`),
		Sessions: in(`SELECT session_id::pg_catalog.text, holder, version, life, {{at seen_at}}, silent_us, leases, tickets, pid,
				db_user, application_name, client_addr, state
			FROM {{schema}}.list_sessions($1::pg_catalog.int4, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text::pg_catalog.uuid,
				$5::pg_catalog.text::pg_catalog.interval, $6::pg_catalog.text, $7::pg_catalog.text::pg_catalog.uuid, $8::pg_catalog.text)`),
		HolderLives: in(`SELECT name, slot, token, life, {{at signed_at}}, silent_us, connected
			FROM {{schema}}.holder_lives($1::pg_catalog.text[], $2::pg_catalog.int4[])`),
		Suspects: in(`SELECT names, found, queues, partly, locks, held, standby
			FROM {{schema}}.list_suspects($1::pg_catalog.text[], $2::pg_catalog.int4)`),
		BreakLock: in(`SELECT holder, token, new_token, {{at expires_at}}, handed, watched
			FROM {{schema}}.break_lock($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.int8)`),
		History: in(`SELECT id, {{at at}}, kind, lock_name, token, new_token, holder, actor, db_user, reason, resource,
				session_id::pg_catalog.text, slot, mode, capacity, {{at granted_at}}, {{at ended_at}}, number, coalesce(subtree, false)
			FROM {{schema}}.list_history($1::pg_catalog.text, $2::pg_catalog.int4, $3::pg_catalog.int8, $4::pg_catalog.text[],
				$5::pg_catalog.text::pg_catalog.timestamptz, $6::pg_catalog.text::pg_catalog.timestamptz)`),
		HistorySettings: in(`SELECT level, keep_us, {{at since}}, {{at pruned}} FROM {{schema}}.history_settings()`),
		SetHistory: in(`SELECT level, keep_us, {{at since}}, {{at pruned}}
			FROM {{schema}}.set_history($1::pg_catalog.text, $2::pg_catalog.text, pg_catalog.make_interval(secs => $3::pg_catalog.float8))`),
		Replay: in(`SELECT id, {{at at}}, kind, lock_name, token, new_token, holder, slot, mode, capacity,
				{{at granted_at}}, {{at ended_at}}, number, session_id::pg_catalog.text, coalesce(subtree, false)
			FROM {{schema}}.replay_history($1::pg_catalog.text, $2::pg_catalog.int4, $3::pg_catalog.text, $4::pg_catalog.int8, $5::pg_catalog.int8)`),
		ClockSteps: in(`SELECT id, {{at before}}, {{at after}}, last FROM {{schema}}.clock_steps($1::pg_catalog.int8)`),
		BreakSession: in(`SELECT name, slot, ticket, holder, token, new_token, {{at expires_at}}, handed, watched
			FROM {{schema}}.break_session($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.int4,
				$5::pg_catalog.text)`),
		Fences: in(`SELECT resource, last_token, lock_name, {{at advanced_at}}
			FROM {{schema}}.list_fences($1::pg_catalog.text, $2::pg_catalog.int4, $3::pg_catalog.text, $4::pg_catalog.text, $5::pg_catalog.text,
				$6::pg_catalog.text::pg_catalog.interval, $7::pg_catalog.text)`),
		Backends: in(`SELECT slot, token, holder, use, resource, pid, db_user, application_name, hidden, client_addr, {{at started_at}}, state,
				state_us, transaction_us, query_us, waits_for, may_end, query, gid, blocked_by, blocked_by_gid, blocked_at,
				{{at pg_catalog.clock_timestamp()}}
			FROM {{schema}}.list_backends($1::pg_catalog.text)`),
		Waits: in(`SELECT holds, waiter, session_id::pg_catalog.text, same_owner, ticket, waits_for, waiting_us, holder,
				holder_session_id::pg_catalog.text, holder_token, holder_name, held_us, any_of, {{at pg_catalog.clock_timestamp()}}
			FROM {{schema}}.list_waits($1::pg_catalog.text)`),
		Obstacles: in(`SELECT name, token, ticket, mode, subtree, holder, session_id::pg_catalog.text, {{at since}}
			FROM {{schema}}.list_obstacles($1::pg_catalog.text)`),
		Obstructed: in(`SELECT name, ticket, holder, {{at enqueued_at}}
			FROM {{schema}}.list_obstructed($1::pg_catalog.text)`),
		BrokenGuards: in(`SELECT table_name, resource, coalesce(key_column, ''), problem
			FROM {{schema}}.broken_guards($1::pg_catalog.text)`),
		Diagnose:     in(`SELECT item, ok, value, meaning FROM {{schema}}.diagnose($1, $2)`),
		Statistics:   in(`SELECT item, lock_name, value FROM {{schema}}.statistics($1::pg_catalog.int4)`),
		Blocked:      in(`SELECT item, NULL, value FROM {{schema}}.blocked_statistics()`),
		RecentEvents: in(`SELECT id, kind FROM {{schema}}.recent_events($1::pg_catalog.int8)`),
	}
}
