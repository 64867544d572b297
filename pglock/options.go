package pglock

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
)

// Option configures a Client. A bad value makes New fail.
type Option func(*config) error

type config struct {
	schema     string
	holder     string
	ttl        time.Duration
	grace      time.Duration
	sessionTTL time.Duration
	listen     *pgx.ConnConfig // nil: made as the pool makes its connections
	observers  []Observer
}

var errNilOption = &ArgumentError{"option", "nil", "be an option of this package"}

func newConfig(opts []Option) (config, error) {
	c := config{schema: "pglock", holder: argument.Process(MaxHolderBytes), ttl: DefaultTTL,
		sessionTTL: DefaultSessionTTL}
	for _, o := range opts {
		if o == nil {
			return config{}, errNilOption
		}
		if err := o(&c); err != nil {
			return config{}, err
		}
	}
	return c, checkGrace(c.ttl, c.grace)
}

// WithSchema names the schema of the tables and functions. Defaults to "pglock".
func WithSchema(name string) Option {
	return func(c *config) error {
		c.schema = name
		return checkText("schema", name, argument.SchemaBytes)
	}
}

// WithDefaultHolder sets the label that people see on this client's leases without WithHolder, 1 to
// MaxHolderBytes bytes. It need not be unique. Defaults to "host/program[pid]".
func WithDefaultHolder(label string) Option {
	return func(c *config) error {
		c.holder = label
		return checkText("holder", label, MaxHolderBytes)
	}
}

// WithDefaultTTL sets the TTL of leases without WithTTL, from MinTTL to MaxTTL. Defaults to DefaultTTL.
func WithDefaultTTL(ttl time.Duration) Option {
	return func(c *config) error {
		c.ttl = ttl
		return checkTTL("default TTL", ttl)
	}
}

// WithDefaultGrace sets the grace of leases without WithGrace, from 0 to MaxTTL less the default TTL. Defaults to 0.
func WithDefaultGrace(d time.Duration) Option {
	return func(c *config) error {
		c.grace = d
		return nil
	}
}

// WithSessionTTL sets how long the queue waits for a sign of life of this client before it skips its waiting
// calls, from MinTTL to MaxTTL; far from the front of a queue that stands still it may wait for twice as long. Leases
// are not affected. Defaults to DefaultSessionTTL.
func WithSessionTTL(ttl time.Duration) Option {
	return func(c *config) error {
		c.sessionTTL = ttl
		return checkTTL("session TTL", ttl)
	}
}

// WithListenConfig makes the client listen over a connection of its own, with a configuration made by pgx.ParseConfig.
// Use it if the pool goes through a pooler that shares connections between transactions, and so has no LISTEN: connect
// directly to the same database. The user needs no rights but to connect. Defaults to the connection that the client
// has anyway. A client that hears nothing notices this and looks at intervals instead.
func WithListenConfig(direct *pgx.ConnConfig) Option {
	return func(c *config) error {
		if direct == nil || !argument.Parsed(direct) {
			return &ArgumentError{"listen config", "nil or made by hand", "be made by pgx.ParseConfig"}
		}
		c.listen = direct.Copy()
		return nil
	}
}

// AcquireOption configures one TryAcquire, Acquire, AcquireAll or Do. A bad value makes the call fail before anything
// is sent.
type AcquireOption func(*request) error

// Mode says who may share a lock.
type Mode string

// The modes. Requests of all modes wait in one queue.
const (
	ModeExclusive Mode = "exclusive" // one holder
	ModeShared    Mode = "shared"    // any number of holders, all of which asked for shared
	ModeLimit     Mode = "limit"     // as many holders as the limit says
)

// WithTTL sets how long the lease lasts without a renewal, from MinTTL to MaxTTL. Defaults to the client's TTL.
// It is also how long a lock stays taken after its holder has died, and without fencedstore.WithTimeLimit the most that
// one fenced transaction may take.
func WithTTL(ttl time.Duration) AcquireOption {
	return func(r *request) error {
		r.TTL = ttl
		return checkTTL("TTL", ttl)
	}
}

// WithGrace keeps the lock from everybody while its last holder may still believe in its lease: for d after the
// lease has expired without a release. A request with a grace also waits until d after the server's timeline
// has changed, since a failover may have lost grants. It is for work outside the database that no fence
// protects. Choose at least the longest TTL or extension (Extend) in use, and use it in every program that shares the
// lock. A release or a break ends a lease without a grace.
//
// The grace is part of the lease on the server, which shows it as held until the grace ends; its holder stops
// earlier, at the end of the TTL. After a failover Acquire holds the lock and returns when the grace is over;
// TryAcquire gives it back and fails with ErrHeld, whose HeldError names no token. A server that hides its
// timeline (see pglock-admin doctor) gives no grace after a failover. d is from 0 to MaxTTL less the TTL.
// Defaults to WithDefaultGrace, else 0.
func WithGrace(d time.Duration) AcquireOption {
	return func(r *request) error {
		r.Grace = d
		return nil
	}
}

// WithHolder sets the label that people see on the lease, 1 to MaxHolderBytes bytes. Defaults to the client's.
func WithHolder(label string) AcquireOption {
	return func(r *request) error {
		r.Holder = label
		return checkText("holder", label, MaxHolderBytes)
	}
}

// WithMetadata stores a JSON value with the lease, at most MaxMetadataBytes bytes, for people who look at the
// lock. Everybody who may use locks can read it. Defaults to none.
func WithMetadata(raw json.RawMessage) AcquireOption {
	return func(r *request) error {
		r.Metadata = raw
		return checkMetadata(raw)
	}
}

// WithNewOwner treats the request as separate work: it waits for a lock that the context's owner holds, instead of
// failing with ErrSelfDeadlock. It is for goroutines that each take locks of their own under one context, as under that
// of Do or of a leader. Waits of this call are then not part of a circle with what the context's owner holds, so such a
// deadlock is not found. The context of the lease, and of Do's fn, carries the new owner.
func WithNewOwner() AcquireOption {
	return func(r *request) (err error) {
		r.owner, err = newOwner()
		return err
	}
}

// WithMaxWait limits how long Acquire and Do wait for the lock, and for a connection to ask for it. Then the error
// matches context.DeadlineExceeded and, once the server has answered that the lock is not free, ErrHeld. 0 does not
// wait for the lock, as TryAcquire: the error is ErrHeld, or that of a call which could not ask. Defaults to waiting
// until ctx ends. TryAcquire ignores it.
func WithMaxWait(d time.Duration) AcquireOption {
	return func(r *request) error {
		if d < 0 {
			return &ArgumentError{"max wait", d.String(), "not be negative"}
		}
		r.maxWait = d
		return nil
	}
}

// WithShared asks for the lock together with others that ask for it with WithShared, such as readers. It is
// granted if nobody holds the lock in another mode and no earlier waiter wants another mode: later readers do
// not overtake a writer. The lease has its own slot, and its fence's default resource is that slot's
// (Lease.Resource). It excludes WithLimit.
func WithShared() AcquireOption {
	return func(r *request) error { return r.setMode(ModeShared, 0) }
}

// WithLimit asks for one of n places, from 1 to MaxLimit: a semaphore. Every user of the lock must name the
// same limit; the error is ErrLimit while somebody holds or waits for the lock with another. Each place is a
// slot, 1 to n (Lease.Slot), with its own fence (Lease.Resource). It excludes WithShared.
func WithLimit(n int) AcquireOption {
	return func(r *request) error {
		if n < 1 || n > MaxLimit {
			return &ArgumentError{"limit", strconv.Itoa(n), fmt.Sprintf("be from 1 to %d", MaxLimit)}
		}
		return r.setMode(ModeLimit, n)
	}
}

func (r *request) setMode(mode Mode, capacity int) error {
	if r.Mode != string(ModeExclusive) && (r.Mode != string(mode) || r.Capacity != capacity) {
		return &ArgumentError{"mode", modeText(Mode(r.Mode), r.Capacity) + " and " + modeText(mode, capacity),
			"be one of them"}
	}
	r.Mode, r.Capacity = string(mode), capacity
	return nil
}

func modeText(mode Mode, capacity int) string {
	if mode == ModeLimit {
		return fmt.Sprintf("limit %d", capacity)
	}
	return string(mode)
}
