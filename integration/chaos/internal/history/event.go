//go:build unix

// Package history is the laboratory's record: what the workers did, what the server committed, and which faults were
// active when.
package history

// Kind says what an Event is about.
type Kind string

// The kinds of events, in the order in which they come in the life of a worker.
const (
	Ready    Kind = "ready"    // the worker has a client
	Asks     Kind = "asks"     // a call for locks begins: Call, Names, How, Mode, Label, TTL
	Has      Kind = "has"      // it was given a lease: Call, Lease, Name, Slot, Token
	Fails    Kind = "fails"    // it has returned without one: Call, Class, Error
	Writes   Kind = "writes"   // a write begins: Op, How, Resources, Sleeps
	Wrote    Kind = "wrote"    // it has returned: Op, Answer, Class, Error
	Learns   Kind = "learns"   // Store.Outcome has said what became of an unknown write: Op, Answer
	Renews   Kind = "renews"   // Lease.Renew has returned: Lease, Class
	Extends  Kind = "extends"  // Lease.Extend was called at From and has returned: Lease, TTL, Class
	Extended Kind = "extended" // a lease is extended, as was ordered
	Shortens Kind = "shortens" // an extension is about to be ended: Lease
	Lets     Kind = "lets"     // the release of a lease begins: Lease, Until
	Left     Kind = "left"     // it has returned: Lease, Class, Error
	Inside   Kind = "inside"   // a write has done its work and waits before it returns from its callback: Op
	Stalled  Kind = "stalled"  // the worker did not run between From and At
	Stuck    Kind = "stuck"    // a call has not come back in time: How, Error
	Finds    Kind = "finds"    // the worker itself has seen what must not be: How, Error
	Hands    Kind = "hands"    // Lease.HandOver begins: Lease, Label
	Handed   Kind = "handed"   // it has returned: Lease, Class, Error
	Stormed  Kind = "stormed"  // a storm of cancelled calls is over: Before, Goroutines, Class
	Crowded  Kind = "crowded"  // a crowd is over: Class
	Late     Kind = "late"     // the process or the server was late between From and At
	Measured Kind = "measured" // how much the process uses: Goroutines, Heap, Memory
	Thronged Kind = "thronged" // every client of a throng has had its turn: Class
	Drained  Kind = "drained"  // every call has returned, the client is open: Before, Goroutines
	Closed   Kind = "closed"   // client and pool are closed: Before, Goroutines, Heap, HeapBefore
)

// Answers of writes.
const (
	Done    = "nil"     // committed, the caller was told
	Unknown = "unknown" // the caller was told that nobody knows
	Refused = "refused" // not committed, the caller was told
)

// Unfenced is how a worker writes to a guarded table under no fence.
const Unfenced = "unfenced"

// Close is how a worker ends a client.
const Close = "Close"

// Idle is the class of what a worker was ordered and has not even begun.
const Idle = "idle"

// Brief is how a worker asks for a lease of less than a second that must not be lost for nothing.
const Brief = "brief"

// Kept is how a worker asks for a lease that it holds for ever.
const Kept = "keep"

// Event is one thing that a worker says.
type Event struct {
	Kind Kind  `json:"k"`
	Who  int64 `json:"w"`           // the process: worker * Lives + life
	At   Time  `json:"t"`           // before what begins, after what has ended
	From Time  `json:"f,omitempty"` // of what has a beginning, too

	Call  int64 `json:"c,omitempty"`
	Lease int64 `json:"l,omitempty"`
	Op    int64 `json:"o,omitempty"`

	Names     []string `json:"ns,omitempty"`
	Name      string   `json:"n,omitempty"`
	How       string   `json:"h,omitempty"`
	Mode      string   `json:"m,omitempty"`
	Limit     int      `json:"lim,omitempty"`
	Subtree   bool     `json:"st,omitempty"`
	Owner     int64    `json:"ow,omitempty"` // of a line of work that asks again under what it holds: its first call
	Label     string   `json:"lab,omitempty"`
	TTL       Duration `json:"ttl,omitempty"`
	Slot      int      `json:"s,omitempty"`
	Token     int64    `json:"tok,omitempty"`
	Resources []string `json:"r,omitempty"`
	Sleeps    bool     `json:"sl,omitempty"` // the callback takes its time on purpose
	Until     Time     `json:"u,omitempty"`  // the last moment at which the lease was certainly valid

	Answer string `json:"a,omitempty"`
	Class  string `json:"cl,omitempty"` // of the error, for counting; "" is success
	Error  string `json:"e,omitempty"`
	Reason string `json:"re,omitempty"` // of a loss

	Before     int    `json:"b,omitempty"`
	Goroutines int    `json:"g,omitempty"`
	Heap       uint64 `json:"hp,omitempty"`
	HeapBefore uint64 `json:"hb,omitempty"`
	Memory     uint64 `json:"me,omitempty"` // that the process has from the system
}

// Lives is more than any worker has: a process is named by worker*Lives + life.
const Lives = 10_000
