package protocol

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Session is the client that speaks, as the queue knows it. The key is what only it knows.
type Session struct {
	Key    uuid.UUID
	Holder string
	TTL    time.Duration
}

// RequestID names one request for a lock, by the grant ID that it was made with. What became of it, a ticket or a lease, has the
// same.
type RequestID struct {
	Name    string
	GrantID uuid.UUID
}

// Request is one request for a lock as it is sent.
type Request struct {
	RequestID
	Session  Session
	Holder   string // the label of the lease
	TTL      time.Duration
	Grace    time.Duration // on the server the lease is longer by this
	Metadata json.RawMessage
	Mode     string
	Capacity int // 0: the mode has none
	Wait     bool
	Turns    int // how many tokens the grant is to carry; 0 or 1: one
	Owner    uuid.UUID
	Nested   bool // the owner holds a lock
	Retry    bool
}

// Answer is what the server says to one request for a lock: granted, or who holds it and the place in the queue.
type Answer struct {
	Granted    bool
	Token      int64 // of the grant, of a block the last; else of who holds the lock
	FirstToken int64 // of the grant
	Slot       int
	Remaining  time.Duration // of the lease when granted; else until it makes sense for the first in the queue to ask again
	Holder     string
	ExpiresAt  time.Time

	Ticket int64 // 0 when not queued
	Place  int
	First  bool

	Handed Handed
}

// Handed says what a statement granted to waiters on its way.
type Handed struct {
	Hints   []string // to waiters of this client
	Slots   []int    // to those of others, who are to be told by an announcement
	Watched bool     // somebody watches the lock

	Announced bool // somebody else was granted the lock, and has been told
}

// TakenBack is what the server says of a request that was taken back: whether a grant was ended, and who holds the lock otherwise.
type TakenBack struct {
	Ended     bool
	Place     int // that the ticket had; 0 when there was none
	Token     int64
	Holder    string
	ExpiresAt time.Time
	Handed    Handed
}

// Claim names one lease. The grant ID is what only its owner knows.
type Claim struct {
	Name    string
	Token   int64
	GrantID uuid.UUID
	Slot    int

	// Of a renewal that extends the lease, or undoes an extension.
	Lasting  time.Duration // the lease lasts for at least so long, and no renewal shortens it before; 0: for its TTL
	NoLonger int64         // the expiry that the renewal undoes, in microseconds since 1970; 0: none
}

// Ending is what became of a lease that was released.
type Ending struct {
	Released bool
	Handed   Handed
}

// Remains is what became of a lease that was asked about: how long it runs, or why it is lost.
type Remains struct {
	Left time.Duration
	Lost string
}

// Beat is what one statement of the heartbeat does: it renews leases, and looks at the queue, where it is to, searching circles
// from the tickets in Nested.
type Beat struct {
	Claims []Claim
	Look   bool
	Nested []int64
}

// Verdict is what a renewal brought for one lease: it is renewed with so much time left, or busy; else the outcome is the reason
// for which it is lost.
type Verdict struct {
	Outcome   string
	Remaining time.Duration
	ExpiresAt time.Time
}

// The outcomes of a renewal that are no losses.
const (
	Renewed = "renewed"
	Busy    = "busy" // another transaction has locked the row
)

// Sighting is what a look brought for one ticket that is still queued.
type Sighting struct {
	First     bool
	Remaining time.Duration // for the first: until it should ask again
	Circle    []Link        // that its ticket closes, if there is one
}

// Link is one step of a circle of waiters.
type Link struct {
	Lock   string `json:"lock"`
	Waiter string `json:"waiter"`
	Holder string `json:"holder"`
	Queued bool   `json:"queued"`
	Ticket int64  `json:"ticket"`
}
