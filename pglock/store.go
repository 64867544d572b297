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
	granted   bool
	token     Token
	holder    string
	expiresAt time.Time
	remaining time.Duration // of the lease when granted; else until it makes sense for the first in the queue to ask again
	slot      int

	ticket int64 // 0 when not queued
	place  int
	first  bool

	firstToken Token // of the block that the grant carries, whose last is token; 0: token is alone

	handed handed
}

// handed says what a statement granted to waiters on its way.
type handed struct {
	hints   []string // to waiters of this client
	tokens  []int64  // to those of others, who are to be told with announce
	watched bool     // somebody watches the lock

	announced bool // somebody else was granted the lock, and has been told
}

// left is what the server says to one who gives up: whether a grant was taken back, and who held the lock otherwise.
type left struct {
	ended     bool
	place     int // 0 when there was no ticket
	token     Token
	holder    string
	expiresAt time.Time
	handed    handed
}

// verdict is what a heartbeat brought for one lease: renewed with so much time left, busy, or the reason it is lost.
type verdict struct {
	outcome   string
	remaining time.Duration
}

const (
	outcomeRenewed = "renewed"
	outcomeBusy    = "busy" // another transaction has locked the row: ask for this one alone
)

// sighting is what a look brought for one ticket that is still queued.
type sighting struct {
	first     bool
	remaining time.Duration // for the first: until it should ask again
	circle    []Link        // that its ticket closes, if there is one
}

// who is the session that speaks, as the queue knows it.
type who struct {
	session uuid.UUID
	holder  string
	ttl     time.Duration
}

// pulse is one beat: the leases to renew, and whether to look at the queue, searching circles from the tickets in nested.
type pulse struct {
	claims []claim
	look   bool
	nested []int64
}

// store is what the loops of this package need from the database; the tests of timers put a fake in its place.
type store interface {
	acquire(ctx context.Context, w who, r request, grantID uuid.UUID, retry bool) (answer, error)
	// beat does one statement for all: verdicts of the leases, and every ticket of the session that is still queued.
	beat(ctx context.Context, w who, p pulse) (map[claim]verdict, map[int64]sighting, error)
	renew(ctx context.Context, c claim) (time.Duration, error)
	renewBusy(ctx context.Context, c claim) (time.Duration, error)
	check(ctx context.Context, c claim) (time.Duration, error)
	// timeline tells how long ago the server's timeline changed; changed is false when it never did, or cannot be seen.
	timeline(ctx context.Context) (since time.Duration, changed bool, err error)
	// release ends a lease. With announce it also tells the next holder of an exclusive lock, in the same round trip, and
	// leaves that out of what it answers.
	release(ctx context.Context, c claim, announce *who) (bool, handed, error)
	releaseAll(ctx context.Context, claims []claim) (map[string]handed, error)
	leave(ctx context.Context, name string, grantID uuid.UUID) (left, error)
	leaveAll(ctx context.Context, session uuid.UUID, names []string, grantIDs []uuid.UUID) (map[string]handed, error)
	abandon(ctx context.Context, name string, grantID uuid.UUID) (handed, error)
	// own tells that the lease is its owner's.
	own(ctx context.Context, c claim, owner uuid.UUID) error
	announce(ctx context.Context, names []string, tokens []int64) error
	notify(ctx context.Context, channel, payload string) error
	watch(ctx context.Context, name string, lasting time.Duration) (infos []Info, channel string, err error)
	listen(ctx context.Context) (ear, error)
	rest()  // closes the heartbeat's connection until the next beat
	close() // waits for statements that nobody waits for any more
}

// ear is a connection that listens. One goroutine uses it.
type ear interface {
	subscribe(ctx context.Context, channel string) error
	unsubscribe(ctx context.Context, channel string) error
	next(ctx context.Context) (channel, payload string, err error)
	close()
}
