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
	start, acquire, renewAll, renew, check, release, releaseAll, abandon string
	get, list, breakLock, events, fences                                 string
}

// times finds where a query says {{at column}}.
var times = regexp.MustCompile(`\{\{at (\w+)\}\}`)

func newQueries(schema string) *queries {
	in := func(q string) string {
		return times.ReplaceAllString(strings.ReplaceAll(q, "{{schema}}", pgx.Identifier{schema}.Sanitize()),
			"(EXTRACT(epoch FROM $1) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8")
	}
	return &queries{
		start: in(`SELECT schema_version, database_id::pg_catalog.text, isolation, read_only, sequence_ok
			FROM {{schema}}.start_client()`),
		acquire: in(`SELECT granted, token, holder, {{at expires_at}}, remaining_us
			FROM {{schema}}.acquire($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.text::pg_catalog.uuid,
				$4::pg_catalog.text, $5::pg_catalog.text::pg_catalog.interval, $6::pg_catalog.text::pg_catalog.jsonb, $7::pg_catalog.bool)`),
		renewAll: in(`SELECT name, token, outcome, remaining_us
			FROM {{schema}}.renew_all($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[])`),
		renew: in(`SELECT remaining_us
			FROM {{schema}}.renew($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid)`),
		check: in(`SELECT remaining_us
			FROM {{schema}}.check_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid)`),
		// A release need not wait for the disk: losing it in a crash only means that the lease runs out by itself. The
		// setting is made here, in a statement that is its own transaction, and never in the function.
		release: in(`SELECT r.released, pg_catalog.set_config('synchronous_commit', 'off', true)
			FROM {{schema}}.release($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid) AS r (released)`),
		releaseAll: in(`SELECT r.name, pg_catalog.set_config('synchronous_commit', 'off', true)
			FROM {{schema}}.release_all($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[]) AS r (name)`),
		abandon: in(`SELECT r.ended, pg_catalog.set_config('synchronous_commit', 'off', true)
			FROM {{schema}}.abandon($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid) AS r (ended)`),
		get: in(`SELECT name, held, holder, session_id::pg_catalog.text, token, ttl_us, {{at acquired_at}}, {{at renewed_at}},
				{{at expires_at}}, {{at ended_at}}, remaining_us, metadata::pg_catalog.text
			FROM {{schema}}.get_lock($1::pg_catalog.text)`),
		list: in(`SELECT name, held, holder, session_id::pg_catalog.text, token, ttl_us, {{at acquired_at}}, {{at renewed_at}},
				{{at expires_at}}, {{at ended_at}}, remaining_us, metadata::pg_catalog.text
			FROM {{schema}}.list_locks($1::pg_catalog.text, $2::pg_catalog.bool, $3::pg_catalog.text, $4::pg_catalog.int4)`),
		breakLock: in(`SELECT holder, token, new_token, {{at expires_at}}
			FROM {{schema}}.break_lock($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.int8)`),
		events: in(`SELECT id, {{at at}}, kind, lock_name, token, new_token, holder, actor, db_user, reason, resource
			FROM {{schema}}.list_events($1::pg_catalog.text, $2::pg_catalog.int4)`),
		fences: in(`SELECT resource, last_token, lock_name, {{at advanced_at}} FROM {{schema}}.list_fences($1::pg_catalog.text)`),
	}
}
