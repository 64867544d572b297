package lockadmin

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// EventKind says what happened in an Event.
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

// Event is an entry of the history: something that the server has done. Times are the server's, in UTC.
type Event struct {
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
	Number    int64       `json:"number,omitempty"`  // of the tenure among those of the lock's row, from 1
}

// HeldFor is how long the tenure lasted; 0 for an event that ended none.
func (e Event) HeldFor() time.Duration {
	if e.GrantedAt.IsZero() {
		return 0
	}
	return max(0, e.EndedAt.Sub(e.GrantedAt))
}

// eventFilter has what only History takes.
type eventFilter struct {
	kinds        []string
	since, until time.Time
	before       int64
}

// WithKinds chooses kinds of events. Only History takes it.
func WithKinds(kinds ...EventKind) ListOption {
	return func(l *listing) error {
		for _, k := range kinds {
			if !slices.Contains(EventKinds(), k) {
				return &pglock.ArgumentError{Field: "kind", Value: fmt.Sprintf("%q", string(k)), Rule: "be one of " +
					strings.Join(texts(EventKinds()), ", ")}
			}
		}
		l.given = append(l.given, "WithKinds")
		l.events.kinds = append(l.events.kinds, texts(kinds)...)
		return nil
	}
}

func texts(kinds []EventKind) (all []string) {
	for _, k := range kinds {
		all = append(all, string(k))
	}
	return all
}

// WithSince chooses events that were written at this time or later. Only History takes it.
func WithSince(t time.Time) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithSince")
		l.events.since = t
		return nil
	}
}

// WithUntil chooses events that were written before this time. Only History takes it.
func WithUntil(t time.Time) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithUntil")
		l.events.until = t
		return nil
	}
}

// WithBefore continues a list after the event with this ID, toward older ones. Only History takes it.
func WithBefore(id int64) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithBefore")
		l.events.before = id
		if id < 1 {
			return &pglock.ArgumentError{Field: "before", Value: fmt.Sprint(id), Rule: "be the ID of an event"}
		}
		return nil
	}
}

// History yields what has happened to one lock, or with name "" to all, newest first. What it has depends on the
// level: see SetHistory. The database user needs the role pglock_admin. Errors are those of Locks.
func (a *Admin) History(ctx context.Context, name string, opts ...ListOption) iter.Seq2[Event, error] {
	l, err := newListing(ofHistory, name, opts)
	before := l.events.before
	return pages(l, err, func(last Event, size int) ([]Event, error) {
		if last.ID != 0 {
			before = last.ID
		}
		events, err := server.List(ctx, a.db, a.db.Queries.History,
			[]any{name, size, nullID(before), l.events.kinds, nullTime(l.events.since), nullTime(l.events.until)},
			scanEvent)
		if err != nil {
			return nil, failed(ctx, "list the history", err)
		}
		return events, nil
	})
}

func nullID(id int64) *int64 {
	if id == 0 {
		return nil
	}
	return &id
}

func nullTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.UTC().Format(time.RFC3339Nano)
	return &text
}

func scanEvent(rows pgx.Rows) (e Event, err error) {
	var at, grantedAt, endedAt, number *int64
	var newToken *pglock.Token
	var holder, actor, reason, resource, session *string
	var slot, capacity *int
	var mode *pglock.Mode
	err = rows.Scan(&e.ID, &at, &e.Kind, &e.Lock, &e.Token, &newToken, &holder, &actor, &e.DBUser, &reason, &resource,
		&session, &slot, &mode, &capacity, &grantedAt, &endedAt, &number)
	e.At, e.NewToken = protocol.Moment(at), protocol.OrZero(newToken)
	e.Holder, e.Actor, e.Reason, e.Resource = protocol.OrZero(holder), protocol.OrZero(actor), protocol.OrZero(reason),
		protocol.OrZero(resource)
	e.Session, e.Slot, e.Mode, e.Limit = protocol.OrZero(session), protocol.OrZero(slot), protocol.OrZero(mode),
		protocol.OrZero(capacity)
	e.GrantedAt, e.EndedAt, e.Number = protocol.Moment(grantedAt), protocol.Moment(endedAt), protocol.OrZero(number)
	return e, err
}
