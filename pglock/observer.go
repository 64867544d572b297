package pglock

import (
	"context"
	"time"
)

// Observer learns what happens to the locks of a client, for metrics, traces and logs (WithObserver). See SlogObserver,
// and package otelpglock for OpenTelemetry.
//
// A goroutine of the client calls Observe, one event at a time, and no lock waits for that. While Observe runs, up to
// 1,024 events wait in memory. If more come, the client drops them, and says so in an EventObserver. If Observe panics,
// the client goes on with the next event, and says so in an EventObserver. The events of one lease come in the order in
// which they happened. Those of different leases may come in another order than their times (Event.At).
//
// Close delivers what still waits, for up to a second. Observe must not call Close.
//
// ctx has the values of the context of the call that the event is about, for instance a span of a trace, and never
// ends. An event of a lease has those of the call that acquired the lease, unless its kind names another call. Events
// that no call caused have no values.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// ObserverFunc is a function that is an Observer.
type ObserverFunc func(ctx context.Context, e Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// WithObserver tells o what happens to the locks of this client. Given more than once, it adds an observer each time:
// the client tells them in this order. A nil observer is none. Defaults to none, which costs nothing.
func WithObserver(o Observer) Option {
	return func(c *config) error {
		if f, isFunc := o.(ObserverFunc); o != nil && (!isFunc || f != nil) {
			c.observers = append(c.observers, o)
		}
		return nil
	}
}

// EventKind says what an Event is about.
type EventKind string

// The kinds of events. Each says which fields it has besides Kind and At. "Of a lease" stands for Lock, Mode, Slot,
// Token, Holder and TTL; "of a request" for the same without Slot and Token.
const (
	// EventWait: a call begins to wait for a held lock. Fields of a request; Place; Err, a *HeldError that says for
	// whom, and whether that is this client itself. A call has at most one.
	EventWait EventKind = "wait"
	// EventGrant: a call has its lease. Fields of a lease; Waited, Place. If WithGrace makes the call wait after a
	// failover, the event comes before that wait; if the wait fails, an EventRelease and an EventFailed follow.
	EventGrant EventKind = "grant"
	// EventFailed: a call has not got the lock. Fields of a request; Waited, Place, Err. Err is what the call returns:
	// it matches ErrHeld if the lock was held, and ctx's error if the wait was over. A call with invalid arguments has
	// no event.
	EventFailed EventKind = "failed"

	// EventRenew: a statement has renewed leases: one of the heartbeat. Fields: Count, Took, and of the
	// lease with the greatest Gap against its TTL the fields of a lease and Gap.
	EventRenew EventKind = "renew"
	// EventRenewLate: a statement has renewed leases after more than two thirds of their TTL, in which two renewals
	// should have come. It follows EventRenew, and has the same fields; Count is the number of the late leases. Leases
	// that Extend makes longer are never late.
	EventRenewLate EventKind = "renew late"
	// EventRenewFailed: a statement could not renew leases, which go on until their deadline. The heartbeat tries again
	// soon. Fields: those of EventRenew, where Count is the number of the leases that it could not renew, and Err. Of
	// leases whose rows others have locked, a renewal waits for one, and Count has only that one.
	EventRenewFailed EventKind = "renew failed"
	// EventHeldLong: a lease has been renewed for longer than an hour. It comes once for each lease, with its first
	// renewal after that time. That is as it should be for a leader; elsewhere the program may have forgotten to
	// release the lease. Fields of a lease; Held.
	EventHeldLong EventKind = "held long"
	// EventLost: a lease was lost, by the server's answer or by the local deadline. Each grant has either this event or
	// EventRelease, once. Fields of a lease; Reason, Held, Gap, Err. Err is the *LostError. Where Close, or an
	// AcquireAll that fails, is the first to find the loss, Reason is ReasonUnknown: it does not ask further.
	EventLost EventKind = "lost"
	// EventRelease: a lease has ended by Release, Do, HandOver, Close, or after an AcquireAll that did not get all
	// locks. Fields of a lease; Held; Err if the server has not confirmed the release. ctx is that of the call that
	// ended the lease.
	EventRelease EventKind = "release"
	// EventOutlived: Release was called for a lease that was already lost, so its work went on after the loss. Do and
	// package leader call Release when their function has returned. Fields of a lease; Reason, Late. ctx is Release's.
	EventOutlived EventKind = "outlived"
	// EventHandOver: the end of a lease or of a wait gave the lock to waiting calls. Fields: Lock, Count, Took.
	// Took is from the request that ended the lease until the waiting clients were notified. It excludes the
	// notification's way to them. It is 0 if the call that ended the lease left before the answer came: then nobody
	// knows it. ctx is that of the call that ended the lease, if there is one.
	EventHandOver EventKind = "hand over"

	// EventWrite: package fencedstore has committed a transaction under the fence of the lease. A write under several
	// fences has one event for each. Guard and GuardSQL send none: there the application commits. Fields of a lease;
	// Resource, Took, Age. ctx is the write's, as in the next three.
	EventWrite EventKind = "write"
	// EventStale: a fence, or a Verifier of package fencedhttp, refused a token, because a greater one has written, or
	// because this one has written. Fields: Resource, Token, LastToken, Err; from fencedstore also those of a lease,
	// and Age.
	EventStale EventKind = "stale token"
	// EventRefused: a write was refused, and rolled back or not begun, for another reason: Err says which. Of
	// fencedstore: the lease was lost or released, the transaction left the fence or took too long, a row of a guarded
	// table was written without its fence, a right was missing. Fields of a lease; Resource, Age, Err. Of fencedhttp,
	// where the request was answered with 400, 428, 500 or 503: Resource and Token if known, Err.
	EventRefused EventKind = "refused"
	// EventOutcomeUnknown: nobody could say whether a fenced write was committed. Fields of a lease; Resource, Age,
	// Err.
	EventOutcomeUnknown EventKind = "outcome unknown"

	// EventReconnect: the client works again on a new connection, after it had lost one of its own. Fields: Connection;
	// Took: how long it was without; Err: how the connection was lost.
	EventReconnect EventKind = "reconnect"
	// EventPolling: calls wait or watch, and no notifications arrive, so the client looks at intervals. It comes at
	// once, and again after each attempt to listen, at last once a minute; an EventReconnect ends it. Fields:
	// Connection; Took: for how long so far; Count: the attempts so far; Err.
	EventPolling EventKind = "polling"
	// EventUnnamed: the server does not know the prepared statements of a connection, as behind a pooler that shares
	// connections. The client sends statements without names for a while, which costs time. Fields: Took: for how long
	// from now; Count: how often in a row; Err.
	EventUnnamed EventKind = "unnamed statements"

	// EventObserver: the client dropped events because the observer was slow, or the observer panicked. It comes before
	// the next event. Fields: Count: dropped events since the last such event; Panics: the same of panics; Err: the
	// last panic.
	EventObserver EventKind = "observer"
)

// The uses of a client's connection besides the pool: Event.Connection.
const (
	connectionHeartbeat = "heartbeat"
	connectionListener  = "listener"
)

// Event is what an Observer learns. The kind says which fields are set; the others are zero. It has no secrets: nothing
// in it lets anybody renew or release a lease. Strings such as Lock and Holder are as the application gave them: an
// observer that shows them to people must expect control characters.
type Event struct {
	Kind EventKind
	At   time.Time // by the local clock, when it happened

	Lock   string
	Mode   Mode
	Slot   int // 0 for ModeExclusive
	Token  Token
	Holder string        // the label
	TTL    time.Duration // of the lease

	Place  int           // in the queue when the call began to wait, counted up to 100: 1 is next. 0: it did not wait
	Waited time.Duration // since the call began

	Held   time.Duration // from the grant to the end of the lease
	Reason Reason        // of a loss
	Late   time.Duration // how long the work went on after the loss, as far as the client knew of it

	Gap time.Duration // from the last successful request for the lease to this answer, or until now

	Resource  string        // what the fence protects
	LastToken Token         // that passed the fence last
	Age       time.Duration // of the token: since the grant

	// Connection says for what the client uses the connection: "heartbeat" or "listener". Unless the client has
	// WithListenConfig, it uses the same one for both: when that is lost, there is an event for each use.
	Connection string

	Count  int
	Panics int
	Took   time.Duration
	Err    error
}
