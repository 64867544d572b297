// Package worker is the processes that use a peer: this program, run again. Every figure is measured in processes of
// its own, so that neither the memory nor the connections of one peer disturb another, and processor time is counted
// for one.
//
// A worker reads its order from standard input, a line of JSON; makes everything ready and says so; reads the window;
// and writes its result. It ends when its standard input does.
package worker

import (
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/stats"
)

// Role is the first argument that makes this program a worker.
const Role = "be-a-worker"

// Order is what a worker is to do.
type Order struct {
	Peer     string // its name
	Address  string // of its server
	Workload peer.Workload
	Name     string        // what the names of locks begin with; in W2 and W4 the name of the lock
	Callers  int           // goroutines of this process
	First    int           // the number of the first of them, among those of all processes
	Names    int           // locks that each caller of W1 takes in turn, all its own; in W8 those of all callers
	Pool     int           // connections of a pool; 0 for as many as the peer's settings say
	Apart    bool          // each caller has a client by itself, with a pool of one connection
	Crowd    Crowd         // what the callers of W8 do
	Leases   int           // that W3 holds
	TTL      time.Duration // of leases
	Holder   bool          // takes the lock of W4 and keeps it until it is killed
	Smoke    bool
}

// Window is when the clock runs; what is done before warms up.
type Window struct{ Begin, End time.Time }

func (w Window) has(t time.Time) bool { return !t.Before(w.Begin) && t.Before(w.End) }

// Late says that two readings, so far apart, are useless for the window: the first came when half of it was over.
func (w Window) Late(apart time.Duration) bool { return apart < w.End.Sub(w.Begin)/2 }

// Result is what a worker did.
type Result struct {
	Took []time.Duration // each pair (W1, W7), wait (W2), write (W5) or first grant (W6) that ended within the window
	// FromConnected is the part of each first grant (W6) that came after the connection was there.
	FromConnected []time.Duration
	Total         int           // all of them, before and after the window too
	Shares        []stats.Share // of each caller
	CPU           time.Duration // of the client, within the window
	Requests      int64         // that were sent within the window
	Late          bool          // the machine was too busy to read in time what was used
	Error         string        // "" if all went well
}
