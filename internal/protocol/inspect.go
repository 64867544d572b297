package protocol

import (
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// LockInfo is pglock.LockInfo for its two readers. The types are parameters, because this package does not import
// pglock.
type LockInfo[Token ~int64, Mode ~string] struct {
	Name       string
	Held       bool
	Holder     string
	Session    string
	Token      Token
	TTL        time.Duration
	AcquiredAt time.Time
	RenewedAt  time.Time
	ExpiresAt  time.Time
	EndedAt    time.Time
	Remaining  time.Duration
	Metadata   json.RawMessage
	Mode       Mode
	Limit      int
	Slot       int
	Waiting    int
	Grants     int64

	SlowestRenewal time.Duration
}

// ScanLockInfo reads a row of the columns that every view of locks has, and further columns after them.
func ScanLockInfo[Token ~int64, Mode ~string](rows pgx.Rows, more ...any) (i LockInfo[Token, Mode], err error) {
	var ttl, remaining int64
	var acquiredAt, renewedAt, expiresAt, endedAt *int64
	var metadata *string
	var capacity *int
	var slowest *int64
	err = rows.Scan(append([]any{&i.Name, &i.Held, &i.Holder, &i.Session, &i.Token, &ttl, &acquiredAt, &renewedAt,
		&expiresAt, &endedAt, &remaining, &metadata, &i.Slot, &i.Mode, &capacity, &i.Waiting, &i.Grants, &slowest}, more...)...)
	i.TTL, i.Remaining = time.Duration(ttl)*time.Microsecond, time.Duration(remaining)*time.Microsecond
	i.AcquiredAt, i.RenewedAt = Moment(acquiredAt), Moment(renewedAt)
	i.ExpiresAt, i.EndedAt, i.Limit = Moment(expiresAt), Moment(endedAt), OrZero(capacity)
	i.SlowestRenewal = time.Duration(OrZero(slowest)) * time.Microsecond
	if metadata != nil {
		i.Metadata = json.RawMessage(*metadata)
	}
	return i, err
}

// The statements of prune, each in its own transaction. PostgreSQL 14 reads no interval of more than 2^31 seconds or
// microseconds from text.

// EndInTime makes the server end the transaction's statements after so many milliseconds.
const EndInTime = `SELECT pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true)`

// SweepAll removes leftovers, at most so many of each kind.
func SweepAll(schema string) string {
	return inSchema(`SELECT {{schema}}.sweep($1::pg_catalog.int4), NULL::pg_catalog.text`, schema)
}

// PruneHistory removes entries of the history that are older than so many seconds.
func PruneHistory(schema string) string {
	return inSchema(`SELECT {{schema}}.prune_history(pg_catalog.make_interval(secs => $1::pg_catalog.float8)), NULL::pg_catalog.text`, schema)
}

// PruneLocks removes locks that have been free for longer than so many seconds: at most so many names, after the
// given one.
func PruneLocks(schema string) string {
	return inSchema(`SELECT removed, next
		FROM {{schema}}.prune_locks(pg_catalog.make_interval(secs => $1::pg_catalog.float8), $2::pg_catalog.int4, $3::pg_catalog.text)`, schema)
}
