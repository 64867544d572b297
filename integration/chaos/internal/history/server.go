//go:build unix

package history

import "time"

// Version is one version of a row of the table of locks, as its transaction has left it.
type Version struct {
	Name     string
	Slot     int
	Token    int64
	Holder   string
	Owner    string // what one owner has does not exclude what else it has; "" is nobody's
	Grant    string // says which versions are of one grant
	Mode     string
	Capacity int
	Subtree  bool // it covers all names below

	AcquiredAt time.Time
	ExpiresAt  time.Time // zero when the lease was ended before its time
	EndedAt    time.Time // zero when no release or break has set it
	Gone       bool      // the row was removed
}

// Held says that the version is a lease that runs until ExpiresAt, not one that was ended or never began. EndedAt may
// be that of the lease before it.
func (v Version) Held() bool {
	return !v.Gone && v.ExpiresAt.After(v.AcquiredAt) && !v.EndedAt.Equal(v.ExpiresAt)
}

// Link is one write of a worker: a link in the chain of its resource.
type Link struct {
	Op       int64
	Resource string
	Prev     int64 // the write that it builds on; 0 for the first
	Lock     string
	Slot     int
	Token    int64
	Again    bool // the same token may come again
}

// Commit is one transaction of the server, in the order of their commits.
type Commit struct {
	Position uint64 // of the commit record
	Xid      uint32
	At       time.Time
	Versions []Version
	Links    []Link
	Mark     int64 // of the laboratory itself: everything that was answered before it was sent is committed before it
}

// State is what a server begins an era with: after a promotion the history goes on from here.
type State struct {
	Versions []Version
	Links    []Link // all there are, in no order
	Heads    map[string]int64
}

// Promotion tells when a standby took the place of the primary.
type Promotion struct {
	Lossy  bool
	Safe   Time // what was answered before is on the standby
	Dead   Time // the old primary was gone
	Opened Time // the first connection to the new primary was let through; none to the old one was left
	State  State
}

// Holder is a lease as the server lists it.
type Holder struct {
	Name       string
	Slot       int
	Token      int64
	Label      string
	Mode       string
	Subtree    bool
	AcquiredAt Time
	ExpiresAt  Time
}

// Ticket is a place in a queue as the server lists it.
type Ticket struct {
	Name   string
	Number int64
	Place  int
	Label  string
	Alive  bool
	Since  Time
}

// Look is what the server listed between two moments.
type Look struct {
	Began, Ended Time
	Holders      []Holder
	Tickets      []Ticket
}
