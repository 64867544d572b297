package leader

import (
	"encoding/json"
	"time"

	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// DefaultTolerance is how long Health by default tolerates work that continues after the loss of leadership.
const DefaultTolerance = 10 * time.Second

// Option configures a Candidate. A bad value makes New fail.
type Option func(*config) error

type config struct {
	acquire   []pglock.AcquireOption
	tolerance time.Duration
}

// acquiring is an option of the calls of Acquire; New checks it.
func acquiring(o pglock.AcquireOption) Option {
	return func(c *config) error {
		c.acquire = append(c.acquire, o)
		return nil
	}
}

// WithTTL sets how long the lease lasts without a renewal, from pglock.MinTTL to pglock.MaxTTL. After a leader dies,
// the next one leads after two thirds to all of the TTL. Defaults to the client's TTL.
func WithTTL(ttl time.Duration) Option { return acquiring(pglock.WithTTL(ttl)) }

// WithHolder sets the label of the candidate, 1 to pglock.MaxHolderBytes bytes: observers see it, and HandOver names
// it. Give each candidate its own. Defaults to the client's label.
func WithHolder(label string) Option { return acquiring(pglock.WithHolder(label)) }

// WithMetadata sets a JSON value that observers see while this candidate leads, such as its address, of at most
// pglock.MaxMetadataBytes bytes. Everybody who may use locks can read it. Defaults to none.
func WithMetadata(raw json.RawMessage) Option { return acquiring(pglock.WithMetadata(raw)) }

// WithTolerance sets how long Health tolerates work that continues after leadership was lost, 0 or longer. Defaults
// to DefaultTolerance.
func WithTolerance(d time.Duration) Option {
	return func(c *config) error {
		c.tolerance = d
		return refuse.If(d < 0, "tolerance", d.String(), "not be negative")
	}
}
