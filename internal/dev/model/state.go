package model

import "math/bits"

// State is everything at one moment: the rows of the server that count, what transactions under way have seen, and what
// each client does and believes. Tokens and tickets are numbers of two sequences; 0 is none.
type State struct {
	Locks   [names]Lock
	Clients [clients]Client
	Fence   uint8 // the greatest token of a committed write
}

const (
	names   = 2
	clients = 3
)

// Phase is how far a lease is.
type Phase uint8

const (
	free    Phase = iota // never granted, released or broken: expires_at is -infinity
	running              // by the server's clock
	ranOut               // by the clock, not settled: a renewal or a COMMIT may be under way
	over                 // settled: ended_at is expires_at
)

// A Lease is what a row of locks or subtrees says of its last grant.
type Lease struct {
	Phase Phase
	Token uint8 // the greatest that the row had
}

// A Lock is the head of a name.
type Lock struct {
	Lease
	Owner  uint8 // the client that was granted it, from 1 on; 0: nobody, or that does not matter any more
	Fresh  bool  // the grant ID is that of the owner's present request
	Marked bool  // newcomers look at the queue, though the lock is free
	Untold bool  // it was granted to a ticket, and whoever did it has not announced it yet
}

// At is what a client is doing.
type At uint8

const (
	idle     At = iota
	drawn       // only with TokenBeforeRow: has drawn a token, and not yet the row
	numbered    // a subtree request has drawn its ticket, and has not committed it
	joined      // a plain request has drawn its ticket under the head, and has not committed it
	waiting
	holding
	fenced  // has passed the fence, whose row it has locked
	checked // COMMIT is under way, and has checked the lease, whose row it has locked
)

// Life is that of a client that waits.
type Life uint8

const (
	lives   Life = iota
	stopped      // does nothing; its session still counts
	gone         // does nothing, and its session is over
	back         // goes on, but nothing of it has reached the server since its session was over
)

// Stage is how far a transaction is that may grant, where there are subtrees.
type Stage uint8

const (
	none        Stage = iota
	tableLocked       // it has locked the table, and has no snapshot yet
	snapped           // it has its snapshot, and is not committed
)

// A Client is one of those who ask for locks, with its ticket, and for a subtree with its row.
type Client struct {
	At     At
	Life   Life
	Stage  Stage         // of its request, while it waits, or of its release, while it holds
	Ticket uint8         // of the row in waiters or subtrees
	Token  uint8         // of the lease that it believes in
	Hint   uint8         // the token of a hint that is on its way
	Renews bool          // a renewal is under way, and has locked the row
	Saw    [clients]view // what the snapshot of its transaction shows
	Behind uint8         // who held the table lock when it began to wait for grants under way, and has not ended
	Begun  bool          // it has begun to wait for them
	Sub    Lease         // of a subtree request
}

// view is what a snapshot shows of another client: its request, and with subtrees its lease.
type view uint8

const (
	sawWaiting view = 1 // with a ticket that counts
	sawDead    view = 2 // with a ticket whose session is over
	sawRequest view = 3
	sawRunning view = 4
	sawRanOut  view = 8
)

func (c *Client) dead() bool { return c.Life == gone || c.Life == back }

// queued says that a ticket is committed and not granted.
func (c *Client) queued() bool {
	return c.Ticket != 0 && c.At != joined && c.At != numbered && c.Sub.Phase != running && c.Sub.Phase != ranOut
}

// Canonical counts tokens and tickets from 1, without gaps: only their order matters.
func (m *Model) Canonical(s State) State {
	var tokens, tickets ranks
	for i := range s.Locks {
		tokens.add(s.Locks[i].Token)
	}
	tokens.add(s.Fence)
	for i := range s.Clients {
		c := &s.Clients[i]
		tokens.add(c.Token)
		tokens.add(c.Hint)
		tokens.add(c.Sub.Token)
		tickets.add(c.Ticket)
	}
	for i := range s.Locks {
		s.Locks[i].Token = tokens.of(s.Locks[i].Token)
	}
	s.Fence = tokens.of(s.Fence)
	for i := range s.Clients {
		c := &s.Clients[i]
		c.Token, c.Hint, c.Sub.Token = tokens.of(c.Token), tokens.of(c.Hint), tokens.of(c.Sub.Token)
		c.Ticket = tickets.of(c.Ticket)
	}
	return s
}

// ranks is a set of numbers below 64.
type ranks uint64

func (r *ranks) add(n uint8) { *r |= 1 << n }

func (r *ranks) of(n uint8) uint8 {
	if n == 0 {
		return 0
	}
	return uint8(bits.OnesCount64(uint64(*r>>1) & (1<<n - 1)))
}
