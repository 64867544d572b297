package lockadmin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// EventKind says what happened in a HistoryEntry.
type EventKind string

// The kinds of events. The first six end a tenure: the time for which somebody held a lease.
const (
	EventTakeover EventKind = "takeover" // the lease ran out, and the lock was granted again
	EventBreak    EventKind = "break"    // an operator ended the lease
	EventExpired  EventKind = "expired"  // the lease ran out, and Prune removed the lock
	EventRelease  EventKind = "release"  // the holder ended the lease; only at HistoryAll
	EventHandover EventKind = "handover" // the holder ended the lease and chose the next; only at HistoryAll
	// the lock was granted again before its lease was over, which must never happen
	EventOverlap EventKind = "overlap"

	EventBypass EventKind = "bypass" // an operator wrote past the guards of tables
	EventEpoch  EventKind = "epoch"  // every later token is greater than Token
	EventLevel  EventKind = "level"  // an operator changed what the history has, or for how long
)

// EventKinds returns all kinds of events, those of tenures first.
func EventKinds() []EventKind {
	return []EventKind{EventTakeover, EventBreak, EventExpired, EventRelease, EventHandover, EventOverlap, EventBypass,
		EventEpoch, EventLevel}
}

// HistoryEntry is something that the server has done. Times are the server's, in UTC.
type HistoryEntry struct {
	ID       int64        `json:"id"`
	At       time.Time    `json:"at"` // when it was written
	Kind     EventKind    `json:"kind"`
	Lock     string       `json:"lock"`
	Token    pglock.Token `json:"token"`               // of the tenure that ended
	NewToken pglock.Token `json:"new_token,omitempty"` // the token that ended it
	Holder   string       `json:"holder,omitempty"`    // of the tenure
	Actor    string       `json:"actor,omitempty"`     // who did it, in their own words
	DBUser   string       `json:"db_user"`             // who did it, in the database's words
	Reason   string       `json:"reason,omitempty"`
	Resource string       `json:"resource,omitempty"`

	// Of a tenure.
	Session   string      `json:"session,omitempty"`
	Slot      int         `json:"slot,omitempty"`
	Mode      pglock.Mode `json:"mode,omitempty"`
	Limit     int         `json:"limit,omitempty"` // of pglock.ModeLimit
	GrantedAt time.Time   `json:"granted_at,omitzero"`
	EndedAt   time.Time   `json:"ended_at,omitzero"` // of a lease that ran out: its expiry
	Subtree   bool        `json:"subtree,omitempty"` // it covered all names below, too
	Number    int64       `json:"number,omitempty"`  // of the tenure among those of the lock's row, from 1
}

// HeldFor is how long the tenure lasted; 0 for an event that ended none.
func (e HistoryEntry) HeldFor() time.Duration {
	if e.GrantedAt.IsZero() {
		return 0
	}
	return max(0, e.EndedAt.Sub(e.GrantedAt))
}

// MarshalJSON adds how long the tenure lasted.
func (e HistoryEntry) MarshalJSON() ([]byte, error) {
	type plain HistoryEntry
	return json.Marshal(struct {
		plain
		HeldFor int64 `json:"held_for_ms,omitempty"`
	}{plain(e), e.HeldFor().Milliseconds()})
}

// History yields what has happened, newest first. What it has depends on the level: see SetHistory. The database user
// needs the role pglock_admin. Errors are those of Locks.
func (a *Admin) History(ctx context.Context, q HistoryQuery) iter.Seq2[HistoryEntry, error] {
	l := listing{lock: q.Lock, limit: q.Limit, page: q.PageSize}
	err := l.check(OrderName)
	for _, k := range q.Kinds {
		if err == nil {
			err = oneOf("kind", k, EventKinds()...)
		}
	}
	if err == nil && q.Before < 0 {
		err = refuse.Invalid("before", fmt.Sprint(q.Before), "be the ID of an entry")
	}
	read := pageOf[HistoryEntry]{"list the history", a.db.Queries.History, scanEntry}
	return pages(ctx, a.db, l, err, read, func(last HistoryEntry, size int) []any {
		return []any{l.lock, size, orNull(cmp.Or(last.ID, q.Before)), shown.Words(q.Kinds), nullTime(q.Since),
			nullTime(q.Until)}
	})
}

func nullTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return new(protocol.Timestamp(t))
}

func scanEntry(rows pgx.Rows) (e HistoryEntry, err error) {
	err = rows.Scan(&e.ID, moment(&e.At), &e.Kind, &e.Lock, &e.Token, null(&e.NewToken), null(&e.Holder),
		null(&e.Actor), &e.DBUser, null(&e.Reason), null(&e.Resource), null(&e.Session), null(&e.Slot), null(&e.Mode),
		null(&e.Limit), moment(&e.GrantedAt), moment(&e.EndedAt), null(&e.Number), &e.Subtree)
	return e, err
}
