package protocol

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/trust"
)

// Session is the client, as the queue knows it. Only the client knows the key.
type Session struct {
	Key    uuid.UUID
	Holder string
	TTL    time.Duration
	Holds  time.Duration // how long it may go on to hold something; 0 does not tell
	Names  []string      // some of the locks that it holds; nil does not tell
}

// RequestID identifies one request for a lock, by its grant ID. The resulting ticket or lease has the same.
type RequestID struct {
	Name    string
	GrantID uuid.UUID
}

// Request is one request for a lock, as it is sent.
type Request struct {
	RequestID
	Session  Session
	Holder   string // the label of the lease
	TTL      time.Duration
	Grace    time.Duration // on the server the lease is longer by this
	Metadata json.RawMessage
	Mode     string
	Capacity int // 0 if the mode has none
	Subtree  bool
	Wait     bool
	Owner    uuid.UUID
	Nested   bool // the owner holds a lock
	Retry    bool

	Asked trust.Instant // a moment before it was sent: grants that its answer brings are trusted from then
	Since time.Time     // when it began to wait for a connection
}

// Answer is the server's answer to one request for a lock: granted, or the holder and the place in the queue.
type Answer struct {
	Granted   bool
	Token     int64 // of the grant; else the holder's
	Slot      int
	Remaining time.Duration // of the lease when granted; else until the first in the queue should ask again
	Holder    string
	By        string // the lock that it holds, if another one is in the way
	ExpiresAt time.Time

	Ticket int64 // 0 when not queued
	Place  int
	First  bool

	Handed Handed
	Waited time.Duration // for a connection, before it was sent; less if the machine has slept
}

// Handed says what a statement granted to waiters besides its own work.
type Handed struct {
	Hints   []string // to waiters of this client
	Slots   []int    // to waiters of others, which need an announcement
	Watched bool     // somebody watches the lock

	Announced bool // the lock went to another client, which was notified
}

// Announcement lists what to announce to waiters of other clients, and to watchers.
type Announcement struct {
	names []string
	slots []*int // nil: only watchers
}

// Add adds what was granted of a lock, and whether somebody watches it.
func (a *Announcement) Add(name string, granted []int, watched bool) {
	for _, slot := range granted {
		a.names, a.slots = append(a.names, name), append(a.slots, &slot)
	}
	if len(granted) == 0 && watched {
		a.names, a.slots = append(a.names, name), append(a.slots, nil)
	}
}

// announceMost is how many the server takes in one call.
const announceMost = 10_000

// Send announces through the server in a separate transaction, because NOTIFY must not wait for the disk. If it fails,
// the waiters find their grants at the next look.
func (a *Announcement) Send(ctx context.Context, by func(context.Context, []string, []*int) error) {
	for first := 0; first < len(a.names); first += announceMost {
		end := min(first+announceMost, len(a.names))
		_ = by(ctx, a.names[first:end], a.slots[first:end])
	}
}

// TakenBack is the server's answer about a request that was taken back: whether a grant was ended, or who holds the
// lock.
type TakenBack struct {
	Ended     bool
	Place     int // the ticket's place; 0 if there was none
	Token     int64
	Holder    string
	ExpiresAt time.Time
	Handed    Handed
}

// Claim identifies one lease. Only its owner knows the grant ID.
type Claim struct {
	Name    string
	Token   int64
	GrantID uuid.UUID
	Slot    int

	// Of a renewal that extends the lease, or undoes an extension.
	Lasting  time.Duration // the lease lasts for at least so long, and no renewal shortens it before; 0: for its TTL
	NoLonger int64         // the expiry that the renewal undoes, in microseconds since 1970; 0: none
}

// Ending is the result of a release.
type Ending struct {
	Released bool
	Handed   Handed
}

// Bequest ends a lease and gives the lock to a waiter with the label To; with Look it only says whether there is one.
type Bequest struct {
	Claim
	To   string
	Look bool
}

// Succession is the result of a hand-over: the outcome is HandedOver, Nobody, or the reason for which the lease is
// lost.
type Succession struct {
	Outcome string
	Handed  Handed
}

// The outcomes of a hand-over that are not losses.
const (
	HandedOver = "handed over"
	Nobody     = "nobody" // waits under that label
)

// Remains is the result of a check: how long the lease runs, or why it is lost.
type Remains struct {
	Left time.Duration
	Lost string
}

// Verdict is the result of a renewal for one lease: renewed with so much time left, or busy, or else the reason for
// the loss.
type Verdict struct {
	Outcome   string
	Remaining time.Duration
	ExpiresAt time.Time
}

// The outcomes of a renewal that are not losses.
const (
	Renewed = "renewed"
	Busy    = "busy" // another transaction has locked the row
)

// Far is how many tickets before one a look counts.
const Far = 8

// Sighting is what a look found about one ticket that is still queued.
type Sighting struct {
	Ahead     int           // live tickets before it, counted up to Far
	Remaining time.Duration // with nobody ahead: until it should ask again
	Circle    []Link        // that its ticket closes, if any
	Kept      bool          // the session lives as long as the look has asked for
	Served    int64         // the last ticket of the lock that was served: the queue stands still while it is the same
}

// Link is one step of a circle of waiters.
type Link struct {
	Lock   string `json:"lock"`
	Waiter string `json:"waiter"`
	Holder string `json:"holder"`
	Queued bool   `json:"queued"`
	Ticket int64  `json:"ticket"`
}
