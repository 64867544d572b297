package protocol

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The statements of package fencedstore. It sends them in the application's transactions, with whatever driver these
// have.

func inSchema(sql, schema string) string {
	return strings.ReplaceAll(sql, "{{schema}}", pgx.Identifier{schema}.Sanitize())
}

// Fence locks the fence's row, compares the token, and checks the lease. One row-valued column means one call, and
// spares the server a table of results. It also tells which server process has the transaction: what the driver has
// heard when it connected may be a pooler's invention.
func Fence(schema string) string {
	return inSchema(`SELECT ({{schema}}.fence($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid,
			$4::pg_catalog.text, $5::pg_catalog.bool, $6::pg_catalog.text::pg_catalog.uuid, $7::pg_catalog.int4,
			$8::pg_catalog.text::pg_catalog.uuid, $9::pg_catalog.text::pg_catalog.uuid,
			$10::pg_catalog.text::pg_catalog.interval)).remaining_us, pg_catalog.pg_backend_pid()`, schema)
}

// FenceAll is Fence for many. Lists travel as JSON, which every driver can send.
func FenceAll(schema string) string {
	return inSchema(`SELECT remaining_us, pg_catalog.pg_backend_pid() FROM {{schema}}.fence_all(
		ARRAY(SELECT pg_catalog.jsonb_array_elements_text($1::pg_catalog.text::pg_catalog.jsonb)),
		ARRAY(SELECT pg_catalog.jsonb_array_elements_text($2::pg_catalog.text::pg_catalog.jsonb)::pg_catalog.int8),
		ARRAY(SELECT pg_catalog.jsonb_array_elements_text($3::pg_catalog.text::pg_catalog.jsonb)::pg_catalog.uuid),
		ARRAY(SELECT pg_catalog.jsonb_array_elements_text($4::pg_catalog.text::pg_catalog.jsonb)),
		$5::pg_catalog.bool, $6::pg_catalog.text::pg_catalog.uuid,
		ARRAY(SELECT pg_catalog.jsonb_array_elements_text($7::pg_catalog.text::pg_catalog.jsonb)::pg_catalog.int4),
		$8::pg_catalog.text::pg_catalog.uuid, $9::pg_catalog.text::pg_catalog.uuid, $10::pg_catalog.text::pg_catalog.interval)`, schema)
}

// Once is Fence for the work of a key.
func Once(schema string) string {
	return inSchema(`SELECT is_first, lock_name, token,
			(EXTRACT(epoch FROM done_at) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, remaining_us, pg_catalog.pg_backend_pid()
		FROM {{schema}}.once($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.int8, $4::pg_catalog.text::pg_catalog.uuid, $5::pg_catalog.text,
			$6::pg_catalog.text::pg_catalog.timestamptz, pg_catalog.make_interval(secs => $7::pg_catalog.text::pg_catalog.float8), $8::pg_catalog.text::pg_catalog.uuid,
			$9::pg_catalog.int4, $10::pg_catalog.text::pg_catalog.uuid, $11::pg_catalog.text::pg_catalog.uuid,
			$12::pg_catalog.text::pg_catalog.interval)`, schema)
}

// Seal checks the fences of these resources once more.
func Seal(schema string) string {
	return inSchema("SELECT {{schema}}.seal($1::pg_catalog.text[])", schema)
}

// SealOf is Seal without a parameter. The names travel in hexadecimal, which does not depend on the session's
// settings for strings.
func SealOf(schema string, resources []string) string {
	names := make([]string, len(resources))
	for i, name := range resources {
		names[i] = fmt.Sprintf("pg_catalog.convert_from(pg_catalog.decode('%x', 'hex'), 'UTF8')", name)
	}
	return inSchema("SELECT {{schema}}.seal(ARRAY["+strings.Join(names, ", ")+"])", schema)
}

// Outcome asks for a receipt, by its row, its write and its database.
func Outcome(schema string) string {
	return inSchema("SELECT {{schema}}.outcome($1::pg_catalog.text::pg_catalog.uuid, "+
		"$2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.text::pg_catalog.uuid)", schema)
}

// GuardTable puts a table under guard, and UnguardTable takes the guard away.
func GuardTable(schema string) string {
	return inSchema(`SELECT {{schema}}.guard_table($1::pg_catalog.text::pg_catalog.regclass, $2::pg_catalog.text, $3::pg_catalog.text)`, schema)
}

// UnguardTable is described with GuardTable.
func UnguardTable(schema string) string {
	return inSchema(`SELECT {{schema}}.unguard_table($1::pg_catalog.text::pg_catalog.regclass)`, schema)
}

// ListGuards lists the guarded tables.
func ListGuards(schema string) string {
	return inSchema(`SELECT table_name, resource, COALESCE(key_column, ''), covered, COALESCE(problem, '') FROM {{schema}}.list_guards()`, schema)
}

// Blocker is somebody whose transaction keeps another one waiting: a server process, or a prepared transaction.
type Blocker struct {
	At          string // where the other one waits
	PID         int    // 0 of a prepared transaction
	Prepared    string
	User        string
	Application string
	State       string        // "" if the server does not show it
	Transaction time.Duration // the age of the transaction; 0 if the server does not show it
}

// Blockers asks whom a server process waits for, and whose transactions have passed these fences.
func Blockers(schema string, pid int, resources []string, all *[]Blocker) Step {
	return Step{
		SQL: inSchema(`SELECT blocked_at, pid, gid, db_user, application_name, state, transaction_us
			FROM {{schema}}.list_blockers($1::pg_catalog.int4, $2::pg_catalog.text[])`, schema),
		Args: []any{pid, resources},
		Scan: func(rows pgx.Rows) error {
			var b Blocker
			var number *int
			var age *int64
			var gid, user, application, state *string
			err := rows.Scan(&b.At, &number, &gid, &user, &application, &state, &age)
			b.PID, b.Prepared, b.User = OrZero(number), OrZero(gid), OrZero(user)
			b.Application, b.State, b.Transaction = OrZero(application), OrZero(state), max(0, micros(OrZero(age)))
			*all = append(*all, b)
			return err
		},
	}
}
