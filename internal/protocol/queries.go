// Package protocol is what this library and the server say to each other: the statements, what goes with them and comes back,
// how a statement is executed on a connection, and what an error of it means. It knows no client.
package protocol

import (
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Queries are the statements of pglock: one call of one function each, one round trip each. Every name in them is
// qualified, so that they mean the same under any search_path. Texts are cast where they stand, so that they need no
// parameter types and work with prepared statements off. Times come as microseconds since 1970, because a time in text
// form has the session's DateStyle. What each function locks, reads and returns is said where it is, in migrations/schema.
type Queries struct {
	acquire, acquireMany, renewAll, look, ownTickets, beat, renew, renewWaiting, checkMany, timeline, own string
	release, releaseMany, giveUp, endSession, sweep                                                       string
	announce, notify                                                                                      string

	// What these bring is for people, and read where it is shown.
	Start, Watch, Get, List, Waiters, BreakLock, Events, Fences, Diagnose string
}

// times finds where a query says {{at column}}.
var times = regexp.MustCompile(`\{\{at ([\w.()]+)\}\}`)

// NewQueries gives the statements for a schema.
func NewQueries(schema string) *Queries {
	in := func(q string) string {
		q = strings.ReplaceAll(q, "{{info}}", `name, held, holder, session_id::pg_catalog.text, token, ttl_us, {{at acquired_at}}, {{at renewed_at}},
				{{at expires_at}}, {{at ended_at}}, remaining_us, metadata::pg_catalog.text, slot, mode, capacity, waiting`)
		return times.ReplaceAllString(strings.ReplaceAll(q, "{{schema}}", pgx.Identifier{schema}.Sanitize()),
			"(EXTRACT(epoch FROM $1) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8")
	}
	// A statement that is its own transaction may leave the disk behind; a function never does.
	const async = `pg_catalog.set_config('synchronous_commit', 'off', true)`
	return &Queries{
		Start: in(`SELECT schema_version, database_id::pg_catalog.text, isolation, read_only, sequence_ok
			FROM {{schema}}.start_client()`),
		// A grant waits for the disk; a ticket does not: one that a crash loses belonged to a connection that it ended.
		acquire: in(`SELECT a.granted, a.token, a.first_token, a.slot, a.remaining_us, a.holder, {{at a.expires_at}}, a.ticket, a.place, a.is_first,
				a.hints, a.handed, a.watched, CASE WHEN NOT a.granted AND a.hints IS NULL AND a.handed IS NULL THEN ` + async + ` END
			FROM {{schema}}.acquire_lease($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.text::pg_catalog.uuid,
				$4::pg_catalog.text, $5::pg_catalog.text::pg_catalog.interval, $6::pg_catalog.text::pg_catalog.jsonb, $7::pg_catalog.bool,
				$8::pg_catalog.text, $9::pg_catalog.int4, $10::pg_catalog.bool, $11::pg_catalog.text::pg_catalog.interval,
				$12::pg_catalog.text::pg_catalog.uuid, $13::pg_catalog.bool, $14::pg_catalog.int4) a`),
		acquireMany: in(`SELECT m.n, (m.answer).granted, (m.answer).token, (m.answer).first_token, (m.answer).slot, (m.answer).remaining_us,
				(m.answer).holder, {{at (m.answer).expires_at}}, (m.answer).ticket, (m.answer).place, (m.answer).is_first,
				(m.answer).hints, (m.answer).handed, (m.answer).watched,
				CASE WHEN NOT pg_catalog.bool_or((m.answer).granted OR (m.answer).hints IS NOT NULL OR (m.answer).handed IS NOT NULL) OVER ()
					THEN ` + async + ` END
			FROM {{schema}}.acquire_leases($1::pg_catalog.text[], $2::pg_catalog.text[]::pg_catalog.uuid[], $3::pg_catalog.text::pg_catalog.uuid,
				$4::pg_catalog.text[], $5::pg_catalog.text[]::pg_catalog.interval[], $6::pg_catalog.text[]::pg_catalog.jsonb[],
				$7::pg_catalog.bool[], $8::pg_catalog.text[], $9::pg_catalog.int4[], $10::pg_catalog.bool[],
				$11::pg_catalog.text::pg_catalog.interval, $12::pg_catalog.text[]::pg_catalog.uuid[], $13::pg_catalog.bool[],
				$14::pg_catalog.int4[]) m`),
		renewAll: in(`SELECT n, outcome, {{at expires_at}}, NULL::pg_catalog.int8, remaining_us, NULL::pg_catalog.bool, NULL::pg_catalog.text
			FROM {{schema}}.renew_leases($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[], $4::pg_catalog.int4[])`),
		look: in(`SELECT NULL::pg_catalog.int8, NULL::pg_catalog.text, NULL::pg_catalog.int8, ticket, remaining_us, is_first, circle
			FROM {{schema}}.look($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.text::pg_catalog.interval, $4::pg_catalog.int8[])
			WHERE ` + async + ` IS NOT NULL`),
		ownTickets: in(`SELECT name, grant_id::pg_catalog.text FROM {{schema}}.own_tickets($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.int8[])`),
		beat: in(`SELECT n, outcome, {{at expires_at}}, NULL::pg_catalog.int8, remaining_us, NULL::pg_catalog.bool, NULL::pg_catalog.text
			FROM {{schema}}.renew_leases($5::pg_catalog.text[], $6::pg_catalog.int8[], $7::pg_catalog.text[]::pg_catalog.uuid[], $8::pg_catalog.int4[])
			UNION ALL
			SELECT NULL::pg_catalog.int8, NULL::pg_catalog.text, NULL::pg_catalog.int8, ticket, remaining_us, is_first, circle
			FROM {{schema}}.look($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.text::pg_catalog.interval, $4::pg_catalog.int8[])`),
		renew: in(`SELECT remaining_us, {{at expires_at}}, NULL
			FROM {{schema}}.renew_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid, $4::pg_catalog.int4)`),
		renewWaiting: in(`WITH s AS MATERIALIZED (SELECT pg_catalog.set_config('lock_timeout', $5::pg_catalog.text, true) AS x)
			SELECT r.remaining_us, {{at r.expires_at}}, s.x
			FROM s CROSS JOIN LATERAL {{schema}}.renew_lease(CASE WHEN s.x IS NOT NULL THEN $1::pg_catalog.text END, $2::pg_catalog.int8,
				$3::pg_catalog.text::pg_catalog.uuid, $4::pg_catalog.int4) r`),
		checkMany: in(`SELECT n, reason, remaining_us
			FROM {{schema}}.check_leases($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[], $4::pg_catalog.int4[])`),
		own: in(`SELECT o.done, ` + async + `
			FROM {{schema}}.own_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid, $4::pg_catalog.text::pg_catalog.uuid) AS o (done)`),
		timeline: in(`SELECT since_us FROM {{schema}}.timeline()`),
		// A release need not wait for the disk: losing it in a crash only means that the lease runs out by itself. But one
		// that hands the lock over is a grant, and waits.
		release: in(`SELECT 1::pg_catalog.int8, r.released, r.hints, r.handed, r.watched,
				CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN ` + async + ` END
			FROM {{schema}}.release_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid, $4::pg_catalog.int4) r`),
		releaseMany: in(`SELECT m.n, (m.answer).released, (m.answer).hints, (m.answer).handed, (m.answer).watched,
				CASE WHEN NOT pg_catalog.bool_or((m.answer).hints IS NOT NULL OR (m.answer).handed IS NOT NULL) OVER () THEN ` + async + ` END
			FROM {{schema}}.release_leases($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[], $4::pg_catalog.int4[]) m`),
		giveUp: in(`SELECT g.n, g.ended, g.place, g.token, g.holder, {{at g.expires_at}}, g.hints, g.handed, g.watched,
				CASE WHEN NOT pg_catalog.bool_or(g.hints IS NOT NULL OR g.handed IS NOT NULL) OVER () THEN ` + async + ` END
			FROM {{schema}}.give_up($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text[], $3::pg_catalog.text[]::pg_catalog.uuid[],
				$4::pg_catalog.bool) g`),
		endSession: in(`SELECT {{schema}}.end_session($1::pg_catalog.text::pg_catalog.uuid), ` + async),
		sweep:      in(`SELECT {{schema}}.sweep(), ` + async),
		// NOTIFY holds a lock of the whole cluster until its transaction ends: never while it waits for the disk.
		announce: in(`SELECT a.told, ` + async + `
			FROM {{schema}}.announce($1::pg_catalog.text[], $2::pg_catalog.int4[]) AS a (told)`),
		notify: in(`SELECT pg_catalog.pg_notify($1::pg_catalog.text, $2::pg_catalog.text)::pg_catalog.text, ` + async),
		Watch: in(`SELECT {{info}}, w.channel, ` + async + `
			FROM {{schema}}.watch($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.interval) w`),
		Get:  in(`SELECT {{info}} FROM {{schema}}.get_lock($1::pg_catalog.text)`),
		List: in(`SELECT {{info}} FROM {{schema}}.list_locks($1::pg_catalog.text, $2::pg_catalog.bool, $3::pg_catalog.text, $4::pg_catalog.int4)`),
		Waiters: in(`SELECT name, ticket, place, mode, capacity, holder, session_id::pg_catalog.text, alive, ttl_us, {{at enqueued_at}}, waiting_us,
				behind_ticket, behind_holder, metadata::pg_catalog.text
			FROM {{schema}}.list_waiters($1::pg_catalog.text, $2::pg_catalog.int4)`),
		BreakLock: in(`SELECT holder, token, new_token, {{at expires_at}}, handed, watched
			FROM {{schema}}.break_lock($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.int8)`),
		Events: in(`SELECT id, {{at at}}, kind, lock_name, token, new_token, holder, actor, db_user, reason, resource
			FROM {{schema}}.list_events($1::pg_catalog.text, $2::pg_catalog.int4)`),
		Fences:   in(`SELECT resource, last_token, lock_name, {{at advanced_at}} FROM {{schema}}.list_fences($1::pg_catalog.text)`),
		Diagnose: in(`SELECT item, ok, value, meaning FROM {{schema}}.diagnose()`),
	}
}
