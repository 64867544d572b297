package pglock

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// claim names one lease to the server. The grant ID is what only its owner knows.
type claim struct {
	name    string
	token   Token
	grantID uuid.UUID
	slot    int
}

// answer is what the server says to one request for a lock: granted, or who holds it and the place in the queue.
type answer struct {
	granted    bool
	token      Token // of the grant, of a block the last; else of who holds the lock
	firstToken Token // of the grant
	slot       int
	remaining  time.Duration // of the lease when granted; else until it makes sense for the first in the queue to ask again
	holder     string
	expiresAt  time.Time

	ticket int64 // 0 when not queued
	place  int
	first  bool

	handed handed
}

// handed says what a statement granted to waiters on its way.
type handed struct {
	hints   []string // to waiters of this client
	slots   []int    // to those of others, who are to be told with announce
	watched bool     // somebody watches the lock

	announced bool // somebody else was granted the lock, and has been told
}

// takenBack is what the server says to one who gives up: whether a grant was ended, and who holds the lock otherwise.
type takenBack struct {
	ended     bool
	place     int // that the ticket had; 0 when there was none
	token     Token
	holder    string
	expiresAt time.Time
	handed    handed
}

// verdict is what a heartbeat brought for one lease: renewed with so much time left, busy, or the reason it is lost.
type verdict struct {
	outcome   string
	remaining time.Duration
	expiresAt time.Time
}

const (
	outcomeRenewed = "renewed"
	outcomeBusy    = "busy" // another transaction has locked the row
)

// sighting is what a look brought for one ticket that is still queued.
type sighting struct {
	first     bool
	remaining time.Duration // for the first: until it should ask again
	circle    []Link        // that its ticket closes, if there is one
}

// ticketOf is what a ticket stands for.
type ticketOf struct {
	name    string
	grantID uuid.UUID
}

// who is the session that speaks, as the queue knows it. The key is what only it knows.
type who struct {
	key    uuid.UUID
	holder string
	ttl    time.Duration
}

// pulse is one beat: the leases to renew, and whether to look at the queue, searching circles from the tickets in nested.
type pulse struct {
	claims []claim
	look   bool
	nested []int64
}

// store is what the loops of this package need from the database; the tests of timers put a fake in its place. The heartbeat
// has a connection of its own for beat, renewBusy, ownTickets, giveUp, releaseAll, announceBeating, endSession and sweep: one goroutine at a
// time calls these.
type store interface {
	// acquire asks for a lock. What the server does for a call that has left goes to the function given to orphans.
	acquire(ctx context.Context, q ask) (answer, error)
	orphans(take func(q ask, a answer, err error))
	// beat does one statement for all: verdicts of the leases, and every ticket of the session that is still queued.
	beat(ctx context.Context, w who, p pulse) (map[claim]verdict, map[int64]sighting, error)
	// ownTickets names the locks and grant IDs of tickets of the session.
	ownTickets(ctx context.Context, w who, tickets []int64) ([]ticketOf, error)
	// renewBusy waits for the row for as long as given.
	renewBusy(ctx context.Context, c claim, wait time.Duration) (verdict, error)
	// giveUp takes requests back, all of them or none.
	giveUp(ctx context.Context, w who, ups []*giveUp) ([]takenBack, error)
	releaseAll(ctx context.Context, claims []claim) ([]ending, error)
	// announceBeating is announce on the heartbeat's connection.
	announceBeating(ctx context.Context, names []string, slots []*int) error
	endSession(ctx context.Context, w who) error
	sweep(ctx context.Context) error

	renew(ctx context.Context, c claim) (verdict, error)
	check(ctx context.Context, c claim) (time.Duration, error)
	// timeline tells how long ago the server's timeline changed; changed is false when it never did, or cannot be seen.
	timeline(ctx context.Context) (since time.Duration, changed bool, err error)
	// release ends a lease. With announce it also tells the next holder of an exclusive lock, in the same round trip, and
	// leaves that out of what it answers.
	release(ctx context.Context, c claim, announce bool) (bool, handed, error)
	// reason tells why a lease is not held; "" when it is.
	reason(ctx context.Context, c claim) (Reason, error)
	// own tells that the lease is its owner's.
	own(ctx context.Context, c claim, owner uuid.UUID) error
	announce(ctx context.Context, names []string, slots []*int) error
	notify(ctx context.Context, channel, payload string) error
	watch(ctx context.Context, name string, lasting time.Duration) (infos []Info, channel string, err error)
	listen(ctx context.Context) (ear, error)
	rest()                      // closes the heartbeat's connection until the next beat
	landed(ctx context.Context) // refuses requests from now on, and returns when none is under way; those that are when ctx ends end too
	close()                     // ends every statement, and returns when they have ended
}

// ear is a connection that listens. One goroutine uses it.
type ear interface {
	subscribe(ctx context.Context, channel string) error
	unsubscribe(ctx context.Context, channel string) error
	next(ctx context.Context) (channel, payload string, err error)
	close()
}
