package leader

import (
	"encoding/json"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// DefaultTolerance is how long Health by default tolerates work that continues after the loss of leadership.
const DefaultTolerance = 10 * time.Second

// Option configures a Candidate. Run reports a bad value.
type Option func(*config)

type config struct {
	acquire   []pglock.AcquireOption
	tolerance time.Duration
	invalid   error
}

// WithTTL sets how long the lease lasts without a renewal, from pglock.MinTTL to pglock.MaxTTL. After a leader dies,
// the next one leads after two thirds to all of the TTL. Defaults to the client's TTL.
func WithTTL(ttl time.Duration) Option {
	return func(c *config) { c.acquire = append(c.acquire, pglock.WithTTL(ttl)) }
}

// WithHolder sets the label of the candidate, 1 to pglock.MaxHolderBytes bytes: observers see it, and HandOver names
// it. Give each candidate its own. Defaults to the client's label.
func WithHolder(label string) Option {
	return func(c *config) { c.acquire = append(c.acquire, pglock.WithHolder(label)) }
}

// WithMetadata sets a JSON value that observers see while this candidate leads, such as its address, of at most
// pglock.MaxMetadataBytes bytes. Everybody who may use locks can read it. Defaults to none.
func WithMetadata(raw json.RawMessage) Option {
	return func(c *config) { c.acquire = append(c.acquire, pglock.WithMetadata(raw)) }
}

// WithTolerance sets how long Health tolerates work that continues after leadership was lost, 0 or longer. Defaults
// to DefaultTolerance.
func WithTolerance(d time.Duration) Option {
	return func(c *config) {
		c.tolerance = d
		if d < 0 {
			c.invalid = &pglock.ArgumentError{Field: "tolerance", Value: d.String(), Rule: "not be negative"}
		}
	}
}
