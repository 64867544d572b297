package pglock

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// States and refusals, for errors.Is.
var (
	// ErrHeld: the lock is held. errors.As with **HeldError says by whom, but not of an ErrSelfDeadlock or an
	// advisory.HeldError.
	ErrHeld = errors.New("pglock: lock is held")
	// ErrLost: the lease ended without its holder's release. errors.As with **LostError says why.
	ErrLost = errors.New("pglock: lease is lost")
	// ErrReleased: the lease's own holder ended it, through Release, Do or Close.
	ErrReleased = errors.New("pglock: lease is released")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("pglock: client is closed")
	// ErrInvalid: an argument breaks a rule; nothing was changed. errors.As with **ArgumentError says which, unless the
	// server has refused it: then the text does.
	ErrInvalid = argument.ErrInvalid
	// ErrSchema: the tables and functions are missing, or have another version than this library needs.
	// errors.As with **SchemaError says which, if there is one.
	ErrSchema = errors.New("pglock: schema does not fit")
	// ErrPermission: the database user lacks a right; nothing was changed.
	ErrPermission = errors.New("pglock: permission denied")
	// ErrReadOnly: the server is a standby or the session is read-only. Only the primary decides about locks.
	ErrReadOnly = errors.New("pglock: server is read-only")
	// ErrWrongDatabase: another database granted the lease, or has the write of a fencedstore.Receipt, or the session
	// of an advisory.Bridge is in another.
	ErrWrongDatabase = errors.New("pglock: wrong database")
	// ErrSelfDeadlock: the owner of the request (see Lease.Context) already holds the lock, so waiting would
	// never end. It is also an ErrHeld. Work of its own, such as another goroutine's, asks WithNewOwner.
	ErrSelfDeadlock = errors.New("pglock: the owner of this request holds the lock itself")
	// ErrDeadlock: owners wait for each other in a circle. errors.As with **DeadlockError says which.
	ErrDeadlock = errors.New("pglock: deadlock")
	// ErrLimit: the lock is in use with another limit. It is also an ErrInvalid.
	ErrLimit = errors.New("pglock: lock is in use with another limit")
	// ErrNoWaiter: a lock was to be handed over, and nobody waits for it under that label. The lease goes on.
	ErrNoWaiter = errors.New("pglock: nobody waits under that label")
	// ErrOutcomeUnknown: the connection ended after a request was sent and before its answer came. The request
	// may or may not have been carried out.
	ErrOutcomeUnknown = failure.ErrOutcomeUnknown
)

// HeldError says who holds a lock. It is an ErrHeld.
type HeldError struct {
	Lock string
	// "" in a grace, or if nobody holds the lock: a waiter is next, or a transaction has locked its row, or grants of
	// other locks take so long that nobody knows yet what a subtree would cover, or only the server still has a lease
	// of the same owner
	Holder string
	// the lock that Holder holds, or with Token 0 waits for, if another is in the way: above, or below a subtree
	// (WithSubtree)
	By        string
	Token     Token     // of the holder's lease; 0 if Holder is "", or only waits for the lock, and goes first
	ExpiresAt time.Time // by the server's clock, in a grace by the local one, in UTC, unless renewed; zero if unknown
	Grace     bool      // until ExpiresAt a holder whose grant a failover has lost may believe in it (WithGrace)
	Place     int       // in the queue, as last known, counted up to 100: 1 is next; 0 when not queued
	// how old Holder, Token and ExpiresAt are, if the server did not name a holder when the wait ended, as after Close
	Age time.Duration
	// when this client was granted that lease, by the local clock; zero if it has none such any more
	OwnSince time.Time
}

func (e *HeldError) Error() string {
	switch {
	case e.Grace:
		return fmt.Sprintf("pglock: lock %q is free, but in the grace after a failover until %s", e.Lock,
			e.ExpiresAt.Format(time.RFC3339Nano))
	case e.Holder == "":
		return fmt.Sprintf("pglock: lock %q has no holder and is not free: a waiter is next, or a transaction has "+
			"locked its row, or (for a subtree) is granting another lock, or only the server still has a lease of the "+
			"same owner", e.Lock)
	}
	s := fmt.Sprintf("pglock: lock %q is held by %q with token %d", e.Lock, e.Holder, e.Token)
	switch {
	case e.By != "":
		s = e.other()
	case e.Token == 0:
		s = fmt.Sprintf("pglock: lock %q is not free: %q waits for it, and goes first", e.Lock, e.Holder)
	}
	if !e.ExpiresAt.IsZero() {
		s += " until " + e.ExpiresAt.Format(time.RFC3339Nano)
	}
	if e.Age >= time.Second {
		s += fmt.Sprintf(", as the server said %v ago", e.Age.Round(time.Second))
	}
	if !e.OwnSince.IsZero() {
		s += fmt.Sprintf("; that is this client, since %s: release it, or pass Lease.Context if the same work asks "+
			"again", e.OwnSince.Format(time.RFC3339))
	}
	if e.Place > 0 {
		s += fmt.Sprintf("; place %d in the queue", e.Place)
	}
	return s
}

// other is the text for a lock that is not free because of another.
func (e *HeldError) other() string {
	where, does := "above", "holds"
	if strings.HasPrefix(e.By, e.Lock+"/") {
		where = "below"
	}
	if e.Token == 0 {
		does = "waits for"
	}
	s := fmt.Sprintf("pglock: lock %q is not free: %q %s %q, %s it", e.Lock, e.Holder, does, e.By, where)
	if e.Token != 0 {
		s += fmt.Sprintf(", with token %d", e.Token)
	}
	return s
}

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// DeadlockError is a circle of owners that wait for each other. It begins with the owner that gets this error
// because its place in a queue is the newest. It is an ErrDeadlock. Release what this owner holds, so that the
// others can go on.
type DeadlockError struct {
	Circle []DeadlockLink
}

// DeadlockLink is one step of a circle: Waiter waits for Lock, which Holder holds. With Queued, Holder does not
// hold it but waits for it too and is served before Waiter. The labels are for people; owners (Lease.Context)
// close the circle.
type DeadlockLink struct {
	Lock   string `json:"lock"`
	Waiter string `json:"waiter"`
	Holder string `json:"holder"`
	Queued bool   `json:"queued"`
	Ticket int64  `json:"ticket"` // of the waiter
}

func (e *DeadlockError) Error() string {
	var b strings.Builder
	b.WriteString("pglock: deadlock: ")
	for i, l := range e.Circle {
		if i > 0 {
			b.WriteString("; ")
		}
		verb := "is held by"
		if l.Queued {
			verb = "goes first to"
		}
		fmt.Fprintf(&b, "%q waits for lock %q, which %s %q", l.Waiter, l.Lock, verb, l.Holder)
	}
	return b.String()
}

// Is reports whether target is ErrDeadlock.
func (e *DeadlockError) Is(target error) bool { return target == ErrDeadlock }

// Reason says why a lease is lost.
type Reason string

// The reasons for a lost lease.
const (
	ReasonExpired   Reason = "expired"    // it was not renewed in time, by the server's clock or by the local deadline
	ReasonBroken    Reason = "broken"     // an operator ended it
	ReasonTakenOver Reason = "taken over" // it expired, and the lock was granted again
	ReasonReleased  Reason = "released"   // somebody else who knows the grant ID released it
	// this database knows no such grant: it was pruned, restored, lost in a failover, or is of another database; or the
	// history, which would say what ended it, cannot be read; or the server or the driver does not tell
	ReasonUnknown Reason = "unknown"
)

// LostError says which lease was lost and why. It is an ErrLost and nothing else: Err is there for people to read, and
// errors.Is and errors.As do not look into it. A timeout or a closed connection in Err concerns a renewal, not the call
// that returns this error.
type LostError struct {
	Lock   string
	Token  Token
	Reason Reason
	// why it expired, if known: the last failure to renew, a pause of the program, a TTL that is too short; or what
	// kept Release from finding the reason
	Err error
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("pglock: lease of lock %q with token %d is lost: %s", e.Lock, e.Token, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is reports whether target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// ArgumentError names the argument, its value and the rule it breaks. It is an ErrInvalid.
type ArgumentError struct {
	Field string
	Value string
	Rule  string
}

func (e *ArgumentError) Error() string {
	return fmt.Sprintf("pglock: %s is %s: it must %s", e.Field, e.Value, e.Rule)
}

// Is reports whether target is ErrInvalid.
func (e *ArgumentError) Is(target error) bool { return target == ErrInvalid }

// SchemaError says which version of the schema was found and which one this library needs. It is an ErrSchema.
type SchemaError struct {
	Schema   string
	Database string // where New looked, as in `database "app" of localhost:5432`; "" from others
	Have     int    // 0 if the schema is missing
	Need     int
}

func (e *SchemaError) Error() string {
	switch {
	case e.Have == 0 && e.Database != "":
		return fmt.Sprintf("pglock: schema %q is missing or empty in %s: if that is the right one, run `pglock-admin "+
			"migrate up --schema %s` or migrations.Up", e.Schema, e.Database, e.Schema)
	case e.Have == 0:
		return fmt.Sprintf("pglock: schema %q is missing or empty: run `pglock-admin migrate up --schema %s` or "+
			"migrations.Up", e.Schema, e.Schema)
	case e.Have < e.Need:
		return fmt.Sprintf("pglock: schema %q has version %d, this library needs %d: run `pglock-admin migrate up "+
			"--schema %s` or migrations.Up",
			e.Schema, e.Have, e.Need, e.Schema)
	}
	return fmt.Sprintf("pglock: schema %q has version %d, this library knows %d: use a newer release of the library",
		e.Schema, e.Have, e.Need)
}

// Is reports whether target is ErrSchema.
func (e *SchemaError) Is(target error) bool { return target == ErrSchema }

// writable says how to come to a session that may write.
const writable = "connect to the primary (target_session_attrs=read-write); if it is that, " +
	"default_transaction_read_only is on"

// errorFromSQL translates the errors of the protocol's SQL functions (class LK), and the server's refusals that
// have a sentinel here, into the errors of this package. It returns any other error unchanged. name and token
// are the lease's.
func errorFromSQL(err error, name string, token Token) error {
	if protocol.ReadOnly(err) {
		return fmt.Errorf("%w: %s: %w", ErrReadOnly, writable, err)
	}
	if connect, is := errors.AsType[*pgconn.ConnectError](err); is {
		return ofConnecting(err, connect.Config)
	}
	switch state := protocol.State(err); state {
	case protocol.StateExpired:
		return &LostError{Lock: name, Token: token, Reason: ReasonExpired}
	case protocol.StateNotHolder:
		reason := cmp.Or(Reason(protocol.Detail(err, "reason")), ReasonUnknown)
		return &LostError{Lock: name, Token: token, Reason: reason}
	case protocol.StateDeadlock:
		return &selfDeadlockError{protocol.Message(err)}
	case protocol.StateOtherLimit:
		return fmt.Errorf("%w: %w: %s", ErrLimit, ErrInvalid, protocol.Message(err))
	case protocol.StateOtherDatabase:
		return fmt.Errorf("%w: %s", ErrWrongDatabase, protocol.Message(err))
	case "42501":
		return fmt.Errorf("%w (GRANT pglock_user, or pglock_admin for operators, to the user; a member with NOINHERIT "+
			"must SET ROLE to it): %w", ErrPermission, err)
	case "3F000", "42883":
		return fmt.Errorf("%w: run `pglock-admin migrate up` or migrations.Up: %w", ErrSchema, err)
	case "26000", "42P05":
		return fmt.Errorf("%w (behind a pooler that shares connections, such as PgBouncer, put "+
			"default_query_exec_mode=exec into the pool's URL)", err)
	case "22023", "22P05", "22003", "22P02", "22021":
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
}

// ofConnecting is a failure to connect. Whatever the server refuses there, it is no right on the locks.
func ofConnecting(err error, config *pgconn.Config) error {
	if protocol.State(err) != "42501" {
		return err
	}
	return fmt.Errorf("%w (if it is the database: GRANT CONNECT ON DATABASE %s TO %s)", err,
		pgx.Identifier{cmp.Or(config.Database, config.User)}.Sanitize(), pgx.Identifier{config.User}.Sanitize())
}

// selfDeadlockError is the server's refusal of a request whose owner holds the lock. It is an ErrSelfDeadlock and an
// ErrHeld.
type selfDeadlockError struct{ says string }

func (e *selfDeadlockError) Error() string {
	return "pglock: " + e.says + "; if this is other work, as in a goroutine of its own, ask WithNewOwner"
}

func (e *selfDeadlockError) Is(target error) bool {
	return target == ErrSelfDeadlock || target == ErrHeld
}
