package pglock

import (
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// queries are the statements of this package: one call of one function each, one round trip each. Every name in them is
// qualified, so that they mean the same under any search_path. Texts are cast where they stand, so that they need no
// parameter types and work with prepared statements off. Times come as microseconds since 1970, because a time in text
// form has the session's DateStyle. What each function locks, reads and returns is said in the
// migration that makes it.
type queries struct {
	start, acquire, acquireMany, acquireEach, renewAll, look, beat, renew, check, checkMany, timeline, own string
	release, releaseMany, releaseAll, abandon, leave, leaveAll                                             string
	announce, announceNext, notify, watch                                                                  string
	get, list, waiters, breakLock, events, fences, diagnose                                                string
}

// times finds where a query says {{at column}}.
var times = regexp.MustCompile(`\{\{at ([\w.]+)\}\}`)

func newQueries(schema string) *queries {
	in := func(q string) string {
		q = strings.ReplaceAll(q, "{{info}}", `name, held, holder, session_id::pg_catalog.text, token, ttl_us, {{at acquired_at}}, {{at renewed_at}},
				{{at expires_at}}, {{at ended_at}}, remaining_us, metadata::pg_catalog.text, slot, mode, capacity, waiting`)
		q = strings.ReplaceAll(q, "{{answer}}", `a.granted, a.token, a.holder, {{at a.expires_at}}, a.remaining_us, a.slot, a.ticket, a.place,
				a.is_first, a.hints, a.handed, a.watched, a.first_token`)
		return times.ReplaceAllString(strings.ReplaceAll(q, "{{schema}}", pgx.Identifier{schema}.Sanitize()),
			"(EXTRACT(epoch FROM $1) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8")
	}
	return &queries{
		start: in(`SELECT schema_version, database_id::pg_catalog.text, isolation, read_only, sequence_ok
			FROM {{schema}}.start_client()`),
		// A grant waits for the disk; a ticket does not: one that a crash loses belonged to a connection that it ended.
		acquire: in(`SELECT {{answer}},
				CASE WHEN a.ticket IS NOT NULL AND NOT a.granted AND a.hints IS NULL AND a.handed IS NULL
					THEN pg_catalog.set_config('synchronous_commit', 'off', true) END
			FROM {{schema}}.acquire_lease($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.text::pg_catalog.uuid,
				$4::pg_catalog.text, $5::pg_catalog.text::pg_catalog.interval, $6::pg_catalog.text::pg_catalog.jsonb, $7::pg_catalog.bool,
				$8::pg_catalog.text, $9::pg_catalog.int4, $10::pg_catalog.bool, $11::pg_catalog.text::pg_catalog.interval,
				$12::pg_catalog.text::pg_catalog.uuid, $13::pg_catalog.bool, $14::pg_catalog.int4) a`),
		acquireMany: in(`SELECT n, granted, token, holder, {{at expires_at}}, remaining_us, watched
			FROM {{schema}}.acquire_many($1::pg_catalog.text[], $2::pg_catalog.text[]::pg_catalog.uuid[], $3::pg_catalog.text[]::pg_catalog.uuid[],
				$4::pg_catalog.text::pg_catalog.uuid, $5::pg_catalog.text, $6::pg_catalog.text::pg_catalog.interval)`),
		// Tickets alone do not wait for the disk.
		acquireEach: in(`SELECT a.n, {{answer}},
				CASE WHEN NOT pg_catalog.bool_or(a.granted OR a.hints IS NOT NULL OR a.handed IS NOT NULL) OVER ()
					THEN pg_catalog.set_config('synchronous_commit', 'off', true) END
			FROM {{schema}}.acquire_each($1::pg_catalog.text[], $2::pg_catalog.text[]::pg_catalog.uuid[], $3::pg_catalog.text::pg_catalog.uuid,
				$4::pg_catalog.text[], $5::pg_catalog.text[]::pg_catalog.interval[], $6::pg_catalog.text[]::pg_catalog.jsonb[],
				$7::pg_catalog.text[], $8::pg_catalog.int4[], $9::pg_catalog.bool[], $10::pg_catalog.text::pg_catalog.interval,
				$11::pg_catalog.text[]::pg_catalog.uuid[], $12::pg_catalog.bool[], $13::pg_catalog.int4[]) a`),
		renewAll: in(`SELECT name, token, outcome, remaining_us, NULL::pg_catalog.bool, NULL::pg_catalog.text
			FROM {{schema}}.renew_leases($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[], $4::pg_catalog.int4[])`),
		look: in(`SELECT NULL::pg_catalog.text, ticket, NULL::pg_catalog.text, remaining_us, is_first, circle
			FROM {{schema}}.look($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.text::pg_catalog.interval, $4::pg_catalog.int8[])
			WHERE pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL`),
		beat: in(`SELECT name, token, outcome, remaining_us, NULL::pg_catalog.bool, NULL::pg_catalog.text
			FROM {{schema}}.renew_leases($5::pg_catalog.text[], $6::pg_catalog.int8[], $7::pg_catalog.text[]::pg_catalog.uuid[], $8::pg_catalog.int4[])
			UNION ALL
			SELECT NULL::pg_catalog.text, ticket, NULL::pg_catalog.text, remaining_us, is_first, circle
			FROM {{schema}}.look($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.text::pg_catalog.interval, $4::pg_catalog.int8[])`),
		renew: in(`SELECT remaining_us
			FROM {{schema}}.renew($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid)`),
		check: in(`SELECT remaining_us
			FROM {{schema}}.check_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid)`),
		checkMany: in(`SELECT n, remaining_us
			FROM {{schema}}.check_leases($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[])`),
		own: in(`SELECT o.done, pg_catalog.set_config('synchronous_commit', 'off', true)
			FROM {{schema}}.own_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid, $4::pg_catalog.text::pg_catalog.uuid) AS o (done)`),
		timeline: in(`SELECT since_us FROM {{schema}}.timeline()`),
		// A release need not wait for the disk: losing it in a crash only means that the lease runs out by itself. But one
		// that hands the lock over is a grant, and waits. The setting is made here, in a statement that is its own
		// transaction, and never in the function.
		release: in(`SELECT r.released, r.hints, r.handed, r.watched,
				CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', true) END
			FROM {{schema}}.release_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid, $4::pg_catalog.int4) r`),
		releaseMany: in(`WITH s AS MATERIALIZED (SELECT pg_catalog.set_config('synchronous_commit', 'off', true) AS x)
			SELECT n, watched FROM s, {{schema}}.release_many($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[])
			WHERE s.x IS NOT NULL`),
		releaseAll: in(`SELECT r.name, r.handed, r.watched, NULL::pg_catalog.text
			FROM {{schema}}.release_all($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[]) r`),
		abandon: in(`SELECT r.ended, r.handed, r.watched,
				CASE WHEN r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', true) END
			FROM {{schema}}.give_back($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid) r`),
		leave: in(`SELECT r.ended, r.place, r.token, r.holder, {{at r.expires_at}}, r.handed, r.watched,
				CASE WHEN r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', true) END
			FROM {{schema}}.leave($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid) r`),
		leaveAll: in(`SELECT r.name, r.handed, r.watched, NULL::pg_catalog.text
			FROM {{schema}}.leave_all($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text[], $3::pg_catalog.text[]::pg_catalog.uuid[]) r`),
		// NOTIFY holds a lock of the whole cluster until its transaction ends: never while it waits for the disk.
		announce: in(`SELECT a.told, pg_catalog.set_config('synchronous_commit', 'off', true)
			FROM {{schema}}.announce($1::pg_catalog.text[], $2::pg_catalog.int8[]) AS a (told)`),
		announceNext: in(`SELECT a.told, pg_catalog.set_config('synchronous_commit', 'off', true)
			FROM {{schema}}.announce_next($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid) AS a (told)`),
		notify: in(`SELECT pg_catalog.pg_notify($1::pg_catalog.text, $2::pg_catalog.text)::pg_catalog.text, pg_catalog.set_config('synchronous_commit', 'off', true)`),
		watch: in(`SELECT {{info}}, w.channel, pg_catalog.set_config('synchronous_commit', 'off', true)
			FROM {{schema}}.watch($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.interval) w`),
		get:  in(`SELECT {{info}} FROM {{schema}}.get_lock($1::pg_catalog.text)`),
		list: in(`SELECT {{info}} FROM {{schema}}.list_locks($1::pg_catalog.text, $2::pg_catalog.bool, $3::pg_catalog.text, $4::pg_catalog.int4)`),
		waiters: in(`SELECT name, ticket, place, mode, capacity, holder, session_id::pg_catalog.text, alive, ttl_us, {{at enqueued_at}}, waiting_us,
				behind_ticket, behind_holder, metadata::pg_catalog.text
			FROM {{schema}}.list_waiters($1::pg_catalog.text, $2::pg_catalog.int4)`),
		breakLock: in(`SELECT holder, token, new_token, {{at expires_at}}, handed, watched
			FROM {{schema}}.break_lock($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.int8)`),
		events: in(`SELECT id, {{at at}}, kind, lock_name, token, new_token, holder, actor, db_user, reason, resource
			FROM {{schema}}.list_events($1::pg_catalog.text, $2::pg_catalog.int4)`),
		fences:   in(`SELECT resource, last_token, lock_name, {{at advanced_at}} FROM {{schema}}.list_fences($1::pg_catalog.text)`),
		diagnose: in(`SELECT item, ok, value, meaning FROM {{schema}}.diagnose()`),
	}
}
