package pglock

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Option configures a Client. A bad value makes New fail.
type Option func(*config) error

type config struct {
	schema string
	holder string
	ttl    time.Duration
}

var errNilOption = &ArgumentError{"option", "nil", "be an option of this package"}

func newConfig(opts []Option) (config, error) {
	c := config{schema: "pglock", holder: defaultHolder(), ttl: DefaultTTL}
	for _, o := range opts {
		if o == nil {
			return config{}, errNilOption
		}
		if err := o(&c); err != nil {
			return config{}, err
		}
	}
	return c, nil
}

// WithSchema says in which schema the tables and functions live. Defaults to "pglock".
func WithSchema(name string) Option {
	return func(c *config) error {
		c.schema = name
		return checkText("schema", name, 63)
	}
}

// WithHolder sets the label under which this client's leases are shown to people, 1 to MaxHolderBytes bytes. It need
// not be unique. Defaults to "host/program[pid]".
func WithHolder(label string) Option {
	return func(c *config) error {
		c.holder = label
		return checkText("holder", label, MaxHolderBytes)
	}
}

// WithDefaultTTL sets the TTL of leases that are acquired without WithTTL, from MinTTL to MaxTTL. Defaults to
// DefaultTTL.
func WithDefaultTTL(ttl time.Duration) Option {
	return func(c *config) error {
		c.ttl = ttl
		return checkTTL("default TTL", ttl)
	}
}

// AcquireOption configures one TryAcquire, Acquire or Do. A bad value makes the call fail before anything is sent.
type AcquireOption func(*request) error

type request struct {
	name     string
	holder   string
	ttl      time.Duration
	metadata json.RawMessage
	maxWait  time.Duration // < 0: until ctx ends
}

func (c *Client) newRequest(name string, opts []AcquireOption) (request, error) {
	r := request{name: name, holder: c.config.holder, ttl: c.config.ttl, maxWait: -1}
	if err := checkText("name", name, MaxNameBytes); err != nil {
		return request{}, err
	}
	for _, o := range opts {
		if o == nil {
			return request{}, errNilOption
		}
		if err := o(&r); err != nil {
			return request{}, err
		}
	}
	return r, nil
}

// WithTTL sets how long the lease lasts without a renewal, from MinTTL to MaxTTL. Defaults to the client's TTL. It
// bounds how long a lock stays taken after its holder died, and how long one fenced transaction may last.
func WithTTL(ttl time.Duration) AcquireOption {
	return func(r *request) error {
		r.ttl = ttl
		return checkTTL("TTL", ttl)
	}
}

// WithLabel sets the holder's label for this lease alone. Defaults to the client's.
func WithLabel(label string) AcquireOption {
	return func(r *request) error {
		r.holder = label
		return checkText("holder", label, MaxHolderBytes)
	}
}

// WithMetadata stores a JSON value beside the lease, at most MaxMetadataBytes bytes, for people who look at the lock.
// Everybody who may use locks can read it. Defaults to none.
func WithMetadata(raw json.RawMessage) AcquireOption {
	return func(r *request) error {
		r.metadata = raw
		return checkMetadata(raw)
	}
}

// WithMaxWait bounds how long Acquire and Do wait for the lock; after it the error is both ErrHeld and
// context.DeadlineExceeded. 0 waits not at all. Defaults to waiting until ctx ends. TryAcquire ignores it.
func WithMaxWait(d time.Duration) AcquireOption {
	return func(r *request) error {
		if d < 0 {
			return &ArgumentError{"max wait", d.String(), "not be negative"}
		}
		r.maxWait = d
		return nil
	}
}

func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	if len(host) > 128 {
		host = host[:128]
	}
	program := filepath.Base(os.Args[0])
	if len(program) > 64 {
		program = program[:64]
	}
	label := fmt.Sprintf("%s/%s[%d]", host, program, os.Getpid())
	if checkText("holder", label, MaxHolderBytes) != nil {
		return fmt.Sprintf("pid %d", os.Getpid()) // a host or program name that is no UTF-8
	}
	return label
}
