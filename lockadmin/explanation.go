package lockadmin

import (
	"encoding/json"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// Explanation says how one lock is, what is wrong with it and what to do next. Verdicts are conclusions in plain words;
// the rest are the facts behind them. All texts have names, labels and statements as they are: whoever shows
// them escapes them. Only commands are quoted, so that a shell may read them. Times are the server's, in
// UTC, and all ages are of the time At.
type Explanation struct {
	Lock     string    `json:"lock"`
	Standby  *Standby  `json:"standby,omitempty"` // the server is one: all this is about the past
	At       time.Time `json:"looked_at"`
	State    LockState `json:"state"`
	Severity Severity  `json:"severity"` // of the first verdict
	// the present first, then the past, and the gravest of each first; there is always one
	Verdicts []Verdict `json:"verdicts"`

	Holders []HolderFacts `json:"holders"`        // held leases, by slot
	Last    *HolderFacts  `json:"last,omitempty"` // of a lock that nobody holds: its last lease
	Queue   QueueFacts    `json:"queue"`
	// what is in the way of the first in the queue, above and below the lock; leases first
	Obstacles []Obstacle `json:"obstacles,omitempty"`
	// the requests for locks above and below that wait for this one
	Obstructed []Obstructed `json:"obstructs,omitempty"`
	// what the holders' programs wait for, and what its holders wait for
	Waits []Wait `json:"waits"`
	// those of them that lead back to this lock: of owners; or of programs alone, if all has been so for a minute
	Circle []Wait `json:"circle,omitempty"`
	// of the server, and prepared transactions, that have to do with the lock
	Processes []Backend     `json:"processes"`
	Guards    []BrokenGuard `json:"broken_guards,omitempty"` // of tables that this lock protects
	// the last takeovers and breaks, newest first; null without the right
	Events    []HistoryEntry `json:"events"`
	Similar   []string       `json:"similar,omitempty"`
	Elsewhere []Elsewhere    `json:"elsewhere,omitempty"` // of a lock that is unknown here: where clients of pglock are
	Unseen    []string       `json:"unseen,omitempty"`    // what could not be seen, and why
}

// LockState says whether somebody holds a lock.
type LockState string

// The states of a lock.
const (
	LockHeld    LockState = "held"
	LockFree    LockState = "free"
	LockUnknown LockState = "unknown" // nobody has used the name here, or its row was pruned
	LockHidden  LockState = "hidden"  // somebody has locked a whole table, and nobody can read it
)

// Severity says how urgent a Verdict is. It is one word everywhere: on the terminal and the page in capitals.
type Severity string

// The severities, the least first.
const (
	SeverityOK Severity = "ok" // as it should be
	// as it should be, and somebody waits: nobody knows how far the holder's work is. Or the holder gives no sign of
	// life, and its lease ends within three seconds
	SeverityBusy    Severity = "busy"
	SeverityNote    Severity = "note"    // good to know
	SeverityWarning Severity = "warning" // something is wrong, and nobody waits in vain yet
	SeverityStuck   Severity = "stuck"   // somebody waits in vain, or soon will
)

// Verdict is one conclusion.
type Verdict struct {
	Kind     string   `json:"kind"` // a word for what it is about; a later version may have others
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`              // what is so, in one or two sentences
	Because  string   `json:"because,omitempty"` // how sure that is, and why
	// the last statement of the process that is the cause, as far as the server shows it: it may hold secrets
	Statement string `json:"statement,omitempty"`
	IfNothing string `json:"if_nothing,omitempty"` // what happens if nobody does anything
	Steps     []Step `json:"steps"`                // what to do, the first first

	Who   string    `json:"who,omitempty"`  // who is the cause: a label, or a process of the server
	Since time.Time `json:"since,omitzero"` // since when it is so, as far as the server knows
}

// Step is one thing that a person can do.
type Step struct {
	Do  string   `json:"do"`            // what it is good for
	Run StepKind `json:"run,omitempty"` // what runs Command; "" if there is no command
	// to paste; of RunAdmin without "pglock-admin" and the flags of the connection
	Command string `json:"command,omitempty"`
	Effect  string `json:"effect,omitempty"` // what it does, and what it does not do
	Needs   string `json:"needs,omitempty"`  // the right that it takes

	Database string `json:"database,omitempty"` // of RunAdmin: another database of the server
	Schema   string `json:"schema,omitempty"`   // of RunAdmin: another schema
}

// StepKind says what runs a command.
type StepKind string

// The kinds of commands.
const (
	RunAdmin StepKind = "pglock-admin"
	RunSQL   StepKind = "sql"
	RunShell StepKind = "shell" // of the host that Do names
)

// The kinds of verdicts.
const (
	whyHeld            = "held"             // its holder renews it: all is well
	whySlow            = "slow"             // all is well, and others wait
	whyHandedPast      = "handed past"      // all is well, and holders hand the lock over past those who wait
	whyLate            = "late"             // a renewal is late
	whyGone            = "gone"             // the holder does not renew, and its connection is closed
	whyStopped         = "stopped"          // the holder does not renew, and its connection is open
	whySilent          = "silent"           // the holder does not renew, and nobody can see its connection
	whyHeartbeat       = "heartbeat"        // a renewal hangs in the server
	whyRow             = "row"              // somebody has locked the lock's row
	whyPrepared        = "prepared"         // a prepared transaction has locked the lock's row, or its fence
	whyBlocked         = "blocked"          // a write of the holder waits for somebody in PostgreSQL
	whyIdle            = "idle"             // a write of the holder is open and does nothing
	whyFence           = "fence"            // a write waits at the fence for an older one
	whyCircle          = "circle"           // holders wait for each other
	whyWaits           = "waits"            // the holder waits for another lock
	whyTurn            = "turn"             // the first in the queue does not take its turn
	whyDeadWaiters     = "dead waiters"     // some that wait are dead
	whyGap             = "gap"              // the lease has nearly run out before
	whyFlapping        = "flapping"         // holders lose the lock again and again, the last a moment ago
	whyLosses          = "losses"           // holders lost the lock again and again
	whyGuard           = "guard"            // a table that this lock protects has a guard that is not whole
	whyFree            = "free"             // nobody holds it, and nobody waits
	whyBroken          = "broken"           // somebody broke it a moment ago
	whySubtree         = "subtree"          // a lease or a request above or below is in the way
	whyBetween         = "between"          // nobody holds it, and somebody waits
	whyUnknown         = "unknown"          // nobody has used this name here
	whyAnotherDatabase = "another database" // and clients of pglock are in another database
	whyAnotherSchema   = "another schema"   // another schema has this lock
	whyStandby         = "standby"          // a standby cannot say how the lock is now
	whyTable           = "table"            // somebody has locked a whole table of pglock
	whyHistory         = "history"          // somebody has locked the history, which the next grant needs
)

// BrokenGuard is a guarded table whose guard is not as it was made: a write without a fence may reach it.
type BrokenGuard struct {
	Table    string `json:"table"` // with its schema
	Resource string `json:"resource"`
	Key      string `json:"key,omitempty"` // the key column, if each row has its own resource
	Problem  string `json:"problem"`
}

// HolderFacts is a lease, and how its holder renews it.
type HolderFacts struct {
	pglock.LockInfo
	HeldFor      time.Duration `json:"-"`
	SinceRenewal time.Duration `json:"-"` // since the grant, if it has not been renewed yet
	Renewed      bool          `json:"renewed"`
	// the server's process of its heartbeat; 0 if none is known
	Heartbeat int `json:"heartbeat_pid,omitempty"`
	HolderLife
}

// MarshalJSON writes durations in milliseconds.
func (h HolderFacts) MarshalJSON() ([]byte, error) {
	type plain HolderFacts
	return json.Marshal(struct {
		plain
		TTL          int64 `json:"ttl_ms"`
		Remaining    int64 `json:"remaining_ms"`
		HeldFor      int64 `json:"held_for_ms"`
		SinceRenewal int64 `json:"since_renewal_ms"`
		Slowest      int64 `json:"slowest_renewal_ms"`
		Silent       int64 `json:"silent_ms"`
	}{plain(h), h.TTL.Milliseconds(), h.Remaining.Milliseconds(), h.HeldFor.Milliseconds(),
		h.SinceRenewal.Milliseconds(),
		h.SlowestRenewal.Milliseconds(), h.Silent.Milliseconds()})
}

// QueueFacts is the queue of a lock.
type QueueFacts struct {
	Waiting int      `json:"waiting"`         // how many wait, dead ones too, as in pglock.LockInfo
	Dead    int      `json:"dead"`            // how many of the first Read are dead; the queue passes over them
	Read    int      `json:"read"`            // how many of them were looked at
	First   []Waiter `json:"first"`           // the first few
	Alive   *Waiter  `json:"alive,omitempty"` // the first that is alive

	// HandedPast: the lock was handed over past Alive (pglock.Lease.HandOver). HandOvers is how many hand-overs since
	// Alive waits are among the lock's last thousand entries in the history; null if it does not have them.
	HandedPast bool `json:"handed_past,omitempty"`
	HandOvers  *int `json:"hand_overs,omitempty"`
}

// Wait is a ticket of a program that holds a lock: Waiter holds Holds, and waits for For, which Holder holds; or
// Holder holds By, which is above or below For.
type Wait struct {
	Waiter  string        `json:"waiter"`
	Session string        `json:"session"`
	Holds   string        `json:"holds"`
	For     string        `json:"for"`
	Ticket  int64         `json:"ticket"`
	Waiting time.Duration `json:"-"`
	// the line of work that holds also waits; otherwise another one of its program does
	SameOwner     bool          `json:"same_owner"`
	Holder        string        `json:"holder,omitempty"`
	HolderSession string        `json:"holder_session,omitempty"`
	By            string        `json:"by,omitempty"`    // another lock that is in the way
	Token         pglock.Token  `json:"token,omitempty"` // of Holder's lease
	HeldFor       time.Duration `json:"-"`               // of Holder's lease
	// Holder has one of several places: the end of another one's lease would do as well
	AnyOf bool `json:"any_of,omitempty"`
}

// MarshalJSON writes durations in milliseconds.
func (w Wait) MarshalJSON() ([]byte, error) {
	type plain Wait
	return json.Marshal(struct {
		plain
		Waiting int64 `json:"waiting_ms"`
		HeldFor int64 `json:"held_for_ms,omitempty"`
	}{plain(w), w.Waiting.Milliseconds(), w.HeldFor.Milliseconds()})
}

// Elsewhere is a place with clients of pglock, or with its schema.
type Elsewhere struct {
	Database     string   `json:"database"`
	Schema       string   `json:"schema,omitempty"` // of this database
	Holds        bool     `json:"holds,omitempty"`  // the schema has a lock of the name
	Connections  int      `json:"connections,omitempty"`
	Applications []string `json:"applications,omitempty"` // some of their names
	// who owns the schema, if others than the user may have made functions there: whoever looks would run them. Explain
	// leaves such a schema out
	Owner string `json:"owner,omitempty"`
}
