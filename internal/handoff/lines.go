// Package handoff passes locks on within a client. Calls that want the same lock in the same way form a line. The
// first call asks for itself. For those that come while it asks or holds the lock, an agent has one ticket in the
// queue. The grant of a ticket carries a block of tokens, and passes from call to call in memory, in the order of
// arrival, each with its own token, until the block or its time is used up. Only then does the line take its next
// ticket. So a call of another client that queues meanwhile comes first, and one that queues later waits for at most
// one block of this line.
//
// This package does no I/O, and reads no clock except for the timer of an empty line. It does not know what calls and
// leases are.
package handoff

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// lingering is how long an empty line keeps its ticket.
	lingering = 10 * time.Millisecond
	// apartFor is for how many tickets a line uses no blocks after a lease that could not be passed on, as under a
	// fence: more such leases are likely.
	apartFor = 16
)

// Key is what calls must have in common to share a grant, because the server shows it as one lease.
type Key struct {
	Name   string
	Holder string
	TTL    time.Duration
}

// Lines are the lines of one client, for calls and leases of these types. It is safe for concurrent use.
type Lines[Call, Lease comparable] struct {
	turns int                           // of a block, at most
	agent func(*Line[Call, Lease]) bool // starts a goroutine that calls Plan until it is dismissed; false: it could not
	waits func(call Call, place int)    // is called with the mutex held when a call joins a line
	mu    sync.Mutex                    // taken before the client's leases'; never held across I/O
	lines map[Key]*Line[Call, Lease]
}

// Line is one line. The mutex of its Lines guards what follows Wake.
type Line[Call, Lease comparable] struct {
	Key  Key
	Wake chan struct{} // 1-buffered: for its agent

	calls  []Call
	turn   *Turn[Call, Lease] // that holds the lock for the line
	asking bool               // the first call asks for itself
	queued bool               // and has its ticket
	answer protocol.Answer    // with the ticket of the line's present request
	agent  bool               // is there
	apart  int                // so many more tickets are for one turn, since the last grants could not be passed on
	leave  context.CancelFunc // takes the agent's request back
	linger *time.Timer        // fires when no call has waited for a while
}

// Turn is the place of a lease in a line, and what its successors can get.
type Turn[Call, Lease comparable] struct {
	line  *Line[Call, Lease]
	lease Lease
	block *block // nil: the grant has one token
	known bool   // others know the lease: it must end through the server
}

// block is the rest of one grant's tokens. Turns take them one after the other.
type block struct {
	next, last int64
	until      trust.Instant
}

// New makes lines for grants of so many turns.
func New[Call, Lease comparable](turns int, agent func(*Line[Call, Lease]) bool, waits func(call Call, place int)) *Lines[Call, Lease] {
	return &Lines[Call, Lease]{turns: turns, agent: agent, waits: waits, lines: make(map[Key]*Line[Call, Lease])}
}

// Join adds a call to the line for the lock. If there is no line, the call begins one and asks for itself: it is
// first.
func (ls *Lines[Call, Lease]) Join(key Key, call Call) (line *Line[Call, Lease], first bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if line = ls.lines[key]; line == nil {
		line = &Line[Call, Lease]{Key: key, Wake: make(chan struct{}, 1), asking: true}
		ls.lines[key] = line
		return line, true
	}
	line.calls = append(line.calls, call)
	ls.waits(call, len(line.calls))
	ls.tidy(line)
	return line, false
}

// FirstDone notes that the first call no longer asks: it holds the lock, or has failed.
func (ls *Lines[Call, Lease]) FirstDone(line *Line[Call, Lease]) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	line.asking = false
	ls.tidy(line)
}

// Queued notes the ticket of the line's present request: its agent's, or the first call's own, behind whom the line
// stands.
func (ls *Lines[Call, Lease]) Queued(line *Line[Call, Lease], a protocol.Answer, byAgent bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !byAgent {
		a.Place++
	}
	line.answer, line.queued = a, true
	if line.agent {
		line.signal()
	}
}

// StepOut takes a call that no longer waits out of the line, and returns its place there, from 1; 0: its turn has
// just come. It also returns who holds the lock, as far as the line knows: the lease, or else the answer with the
// ticket.
func (ls *Lines[Call, Lease]) StepOut(line *Line[Call, Lease], call Call) (place int, holder Lease, a protocol.Answer) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	i := slices.Index(line.calls, call)
	if i < 0 {
		return 0, holder, a
	}
	line.calls = slices.Delete(line.calls, i, i+1)
	ls.drained(line)
	if line.turn != nil {
		holder = line.turn.lease
	}
	return i + 1, holder, line.answer
}

// Part takes calls out of their lines, and returns them.
func (ls *Lines[Call, Lease]) Part(parts func(Call) bool) (all []Call) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, line := range ls.lines {
		line.calls = slices.DeleteFunc(line.calls, func(call Call) bool {
			if parts(call) {
				all = append(all, call)
				return true
			}
			return false
		})
		ls.drained(line)
	}
	return all
}

// Plan tells a line's agent what to do: ask for a grant of so many turns, until leave is called, which Plan keeps; or
// wait so long, or until woken. Neither: the agent is dismissed, because no call waits.
func (ls *Lines[Call, Lease]) Plan(line *Line[Call, Lease], now trust.Instant, closed bool, leave context.CancelFunc) (turns int, wait time.Duration) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(line.calls) == 0 || closed {
		line.agent = false
		line.asked()
		ls.tidy(line)
		return 0, 0
	}
	if line.asking && !line.queued { // the first call goes first
		return 0, pause.Never
	}
	if t := line.turn; t != nil && t.block != nil && !t.known && t.block.next <= t.block.last {
		if wait = now.Until(t.block.until); wait > 0 {
			return 0, wait
		}
	}
	line.leave = leave
	if line.apart > 0 {
		line.apart--
		return 1, 0
	}
	return ls.turns, 0
}

// Arrived ends the agent's request, and takes the calls out of the line that get its result: the first one if the
// lock was granted; otherwise all, which fail with it, unless the agent itself took its request back.
func (ls *Lines[Call, Lease]) Arrived(line *Line[Call, Lease], granted, tookBack bool) (calls []Call) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	line.asked()
	switch {
	case granted && len(line.calls) > 0:
		calls, line.calls = line.calls[:1:1], line.calls[1:]
	case !granted && !tookBack:
		calls, line.calls = line.calls, nil
	}
	return calls
}

func (line *Line[Call, Lease]) asked() {
	if line.leave != nil {
		line.leave()
	}
	line.leave, line.answer = nil, protocol.Answer{}
	if line.linger != nil {
		line.linger.Stop()
	}
}

// Hold notes that a lease holds the lock for the line, with a block of tokens from its own to the last.
func (ls *Lines[Call, Lease]) Hold(line *Line[Call, Lease], lease Lease, token, last int64, until trust.Instant) *Turn[Call, Lease] {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	t := &Turn[Call, Lease]{line: line, lease: lease}
	if token < last {
		t.block = &block{token + 1, last, until}
	}
	line.turn = t
	return t
}

// Ended notes that a lease has ended without being passed on.
func (ls *Lines[Call, Lease]) Ended(t *Turn[Call, Lease]) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if t.line.turn == t {
		t.line.turn = nil
		ls.tidy(t.line)
	}
}

// Pass gives the turn after t to the next call of the line. give makes that call's lease and ends t's; it is called
// with the mutex held, and may refuse. False: the server must be told that t has ended, because nobody waits here,
// the turns or the time are used up, or others know the lease.
func (ls *Lines[Call, Lease]) Pass(t *Turn[Call, Lease], now trust.Instant, give func(Call, int64, *Turn[Call, Lease]) (Lease, bool)) bool {
	if t.block == nil {
		return false
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	line, b := t.line, t.block
	if line.turn != t || len(line.calls) == 0 || b.next > b.last || now.Reached(b.until) || t.known {
		return false
	}
	next := &Turn[Call, Lease]{line: line, block: b}
	lease, ok := give(line.calls[0], b.next, next)
	if !ok {
		return false
	}
	next.lease, line.turn = lease, next
	b.next++
	line.calls = slices.Delete(line.calls, 0, 1)
	if len(line.calls) == 0 {
		ls.drained(line)
	} else if b.next > b.last {
		line.signal()
	}
	return true
}

// MakeKnown notes that this lease must end through the server. False: the lease has ended, and its grant may be
// another's turn.
func (ls *Lines[Call, Lease]) MakeKnown(t *Turn[Call, Lease]) bool {
	if t.block == nil {
		return true
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !t.known && t.line.turn == t {
		t.known = true
		t.line.apart = apartFor
		ls.tidy(t.line)
	}
	return t.known
}

// Current returns the lease that has the grant of t now: if t is a turn of a block, that of the block's present turn.
// None: the block has no turn any more.
func (ls *Lines[Call, Lease]) Current(t *Turn[Call, Lease]) (lease Lease, found bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if h := t.line.turn; t.block != nil && h != nil && h.block == t.block {
		return h.lease, true
	}
	return lease, false
}

// Len is the number of lines.
func (ls *Lines[Call, Lease]) Len() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.lines)
}

// tidy starts or wakes the agent of a line with waiting calls, and forgets an empty line.
func (ls *Lines[Call, Lease]) tidy(line *Line[Call, Lease]) {
	switch {
	case line.agent:
		line.signal() // even without waiting calls: then it is dismissed
	case len(line.calls) > 0:
		line.agent = ls.agent(line)
	case line.turn == nil && !line.asking && ls.lines[line.Key] == line:
		delete(ls.lines, line.Key)
	}
}

// drained takes back the request of a line that has been without calls for a while.
func (ls *Lines[Call, Lease]) drained(line *Line[Call, Lease]) {
	if len(line.calls) > 0 {
		return
	}
	leave := line.leave
	if leave == nil {
		ls.tidy(line)
		return
	}
	if line.linger != nil {
		line.linger.Stop()
	}
	line.linger = time.AfterFunc(lingering, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if len(line.calls) == 0 {
			leave()
		}
	})
}

func (line *Line[Call, Lease]) signal() {
	select {
	case line.Wake <- struct{}{}:
	default:
	}
}
