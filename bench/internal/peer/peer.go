// Package peer has everything that is measured, one small file each.
//
// To add one: write a file with a Kind (what it is, what it guarantees, which server it needs, what it takes part in)
// and a function that opens a Client, and name the Kind in the list of registry.go. The workloads do the rest. A peer
// is configured as its own documentation says; where that leaves a choice, Kind.Settings says what was chosen.
package peer

import (
	"context"
	"time"
)

// Workload is one of the things that are measured.
type Workload string

// The workloads.
const (
	W1 Workload = "W1" // acquire and release, nobody else wants the lock
	W2 Workload = "W2" // one lock that many wait for
	W3 Workload = "W3" // many leases are held for a TTL
	W4 Workload = "W4" // the holder dies
	W5 Workload = "W5" // writes under a lock
	W6 Workload = "W6" // the first grant of a new connection
	W7 Workload = "W7" // W1 while many others wait for other locks
	W8 Workload = "W8" // many that wait: at rest, beside others, when they start and when they ask
)

// Workloads are all of them, in order.
func Workloads() []Workload { return []Workload{W1, W2, W3, W4, W5, W6, W7, W8} }

// Server names a server that a peer needs.
type Server string

// The servers.
const (
	Postgres     Server = "PostgreSQL"
	RedisMemory  Server = "Redis in memory"
	RedisFlushed Server = "Redis flushed" // appendfsync always
	Etcd         Server = "etcd"
	ZooKeeper    Server = "ZooKeeper"
)

// Guarantees are what a peer's own documentation and source promise. They are printed beside the figures, because
// some peers buy much of their speed with them.
type Guarantees struct {
	Durable string `json:"durable"` // does a grant that was answered survive a crash of the server?
	Fair    string `json:"fair"`    // are waiters served in the order in which they came?
	Token   string `json:"token"`   // does each grant have a number that is greater than all before?
	Bound   string `json:"bound"`   // what ends a grant whose holder is gone?
}

// Kind is one peer.
type Kind struct {
	Name       string // as -peers takes it
	Is         string // what it is, in a few words
	Server     Server
	Settings   string // what its documentation leaves open and was chosen here
	Guarantees Guarantees
	In         []Workload
	// Notes say by workload what a reader must know about a figure, or why there is none.
	Notes map[Workload]string
	// MostLeases is how many leases W3 asks of it. Defaults to any number.
	MostLeases int
	// OneProcess keeps it out of the forms that have several processes.
	OneProcess bool
	// WarmUp is added to that of each measurement. Defaults to 0.
	WarmUp time.Duration
	// Modules are the Go modules whose versions are told. Defaults to none.
	Modules []string
	Open    func(ctx context.Context, c Config) (Client, error)
}

// Config is what a client is opened with.
type Config struct {
	Address  string // of the server: a URL for PostgreSQL, host:port for others
	Workload Workload
	Callers  int // that will use the client at the same time
	// Connections is how many a pool has. Defaults to what the peer's Settings say.
	Connections int
	TTL         time.Duration // of what it acquires; the peer takes its own least if that is longer
	Smoke       bool          // everything is to be short
	Late        bool          // what needs more than a pool is made by Client.Caller, which W8 times
	// OnRequest is called before a request is sent, one call at a time. Defaults to nothing.
	OnRequest func(at time.Time)
}

// waits says whether callers wait for a lock that is held.
func (c Config) waits() bool { return c.Workload == W2 || c.Workload == W4 || c.Workload == W8 }

// Client is the use that one process makes of a peer.
type Client interface {
	// Caller makes what one goroutine acquires with, for as many as Config.Callers says, before the clock starts
	// unless Config.Late.
	Caller(ctx context.Context) (Caller, error)
	// Requests counts what was sent to the server: statements for PostgreSQL, commands or calls for others.
	Requests() int64
	// Close gives up what is held, ends every goroutine and closes every connection.
	Close(ctx context.Context) error
}

// Caller acquires one lock at a time. In W2, W4 and W8 it waits until ctx ends; in the others a held lock is an error.
// The release is not bound to ctx.
type Caller interface {
	Acquire(ctx context.Context, name string) (release func(ctx context.Context) error, err error)
}

// Func is a Caller that is a function.
type Func func(ctx context.Context, name string) (release func(ctx context.Context) error, err error)

// Acquire calls the function.
func (f Func) Acquire(ctx context.Context, name string) (func(ctx context.Context) error, error) {
	return f(ctx, name)
}

// Holder is a Client that takes many locks and keeps them in its own way (W3). For other clients a caller acquires
// each lock, and the client keeps it.
type Holder interface {
	// Hold returns when all are held; they are kept until Close.
	Hold(ctx context.Context, names []string) error
}

// Writer is a Client that can write under a lock (W5).
type Writer interface {
	// Writer makes what one goroutine writes with; each has its own row and, if there are locks, its own lock.
	Writer(ctx context.Context, n int) (write func(ctx context.Context) error, err error)
}

// Death is how a holder was killed (W4).
type Death struct {
	Name     string    // of the lock
	Killed   time.Time // when SIGKILL had been sent
	LastSent time.Time // the last request that the holder began to send
}

// Expirer is a Client that knows when a dead holder's lock becomes free, by the server's clock (W4).
type Expirer interface {
	Expiry(ctx context.Context, d Death) (time.Time, error)
}
