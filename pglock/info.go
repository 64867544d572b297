package pglock

import (
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// LockInfo is what everybody may know of a lock, or of one of its holders if it has several. Watch and package
// lockadmin return it. Times are the server's, in UTC.
type LockInfo struct {
	Name       string          `json:"name"`
	Held       bool            `json:"held"`
	Holder     string          `json:"holder"` // of the last grant
	Session    string          `json:"session"`
	Token      Token           `json:"token"`
	TTL        time.Duration   `json:"-"`
	AcquiredAt time.Time       `json:"acquired_at"`
	RenewedAt  time.Time       `json:"renewed_at"`
	ExpiresAt  time.Time       `json:"expires_at,omitzero"` // zero after a release or a break
	EndedAt    time.Time       `json:"ended_at,omitzero"`   // of a release or a break
	Remaining  time.Duration   `json:"-"`                   // of the lease, at the answer
	Metadata   json.RawMessage `json:"metadata,omitempty"`
	Mode       Mode            `json:"mode"`              // of the last grant
	Limit      int             `json:"limit,omitempty"`   // of ModeLimit
	Subtree    bool            `json:"subtree,omitempty"` // the last grant covers all names below this one (WithSubtree)
	Slot       int             `json:"slot,omitempty"`    // from 1, of ModeShared and ModeLimit; 0 for ModeExclusive
	Waiting    int             `json:"waiting"`           // the number of requests in the queue
	// how often this lock, or this slot, was granted since its row was made
	Grants int64 `json:"grants"`

	// SlowestRenewal is the longest time between two renewals of this lease; the grant counts as the first. 0: the
	// lease has not been renewed yet. A gap that comes near to TTL nearly cost the lease.
	SlowestRenewal time.Duration `json:"-"`

	// LongestWait is for how long the first request in the queue has waited, at the answer. 0: nobody waits. Like
	// Waiting, it counts dead waiters too, until somebody sweeps them away.
	LongestWait time.Duration `json:"-"`
}

// scanLockInfo reads a row of the columns that every view of locks has, and further columns after them.
func scanLockInfo(rows pgx.Rows, more ...any) (i LockInfo, err error) {
	var ttl, remaining int64
	var acquiredAt, renewedAt, expiresAt, endedAt, slowest, longest *int64
	var metadata *string
	var capacity *int
	err = rows.Scan(append([]any{&i.Name, &i.Held, &i.Holder, &i.Session, &i.Token, &ttl, &acquiredAt, &renewedAt,
		&expiresAt, &endedAt, &remaining, &metadata, &i.Slot, &i.Mode, &capacity, &i.Waiting, &i.Grants, &slowest,
		&longest, &i.Subtree}, more...)...)
	i.TTL, i.Remaining = time.Duration(ttl)*time.Microsecond, time.Duration(remaining)*time.Microsecond
	i.AcquiredAt, i.RenewedAt = protocol.Moment(acquiredAt), protocol.Moment(renewedAt)
	i.ExpiresAt, i.EndedAt, i.Limit = protocol.Moment(expiresAt), protocol.Moment(endedAt), protocol.OrZero(capacity)
	i.SlowestRenewal, i.LongestWait = time.Duration(protocol.OrZero(slowest))*time.Microsecond,
		time.Duration(protocol.OrZero(longest))*time.Microsecond
	if metadata != nil {
		i.Metadata = json.RawMessage(*metadata)
	}
	return i, err
}
