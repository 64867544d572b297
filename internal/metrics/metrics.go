// Package metrics shows the numbers of lockadmin.Statistics to Prometheus, and says whether the database is fit to
// serve. The numbers come from the database, so they are about all clients of the schema.
package metrics

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The defaults of Config.
const (
	DefaultTop     = 20
	DefaultTimeout = 5 * time.Second
)

const (
	inFlight     = 16          // requests at once; they all share one look at the database
	findingsKept = time.Minute // a diagnosis reads more than a scrape needs every few seconds
	// an event that becomes visible later than this after its ID was drawn is not counted
	lateCommit     = 2 * time.Minute
	mostSeen       = 200_000 // IDs of events that are remembered
	healthPatience = 2 * time.Second
)

// Config is for New, NewCollector and Health.
type Config struct {
	// Top is how many locks have series with their name, up to lockadmin.MaxTop: those that wait or are held for
	// longest. All others are summed up in series without a name. 0 leaves out all of these.
	Top int
	// Timeout limits how long the database has to answer; 0: DefaultTimeout. Health waits for two seconds at most.
	Timeout time.Duration
	// OnError is called with the error of each look at the database that fails. It must not block.
	OnError func(error)
}

func (c *Config) check(admin *lockadmin.Admin) error {
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	return cmp.Or(refuse.If(admin == nil, "admin", "nil", "be a *lockadmin.Admin"),
		refuse.Number("top", c.Top, 0, lockadmin.MaxTop),
		refuse.If(c.Timeout < 0, "timeout", c.Timeout.String(), "be greater than 0"))
}

// New makes the handler of /metrics. The Admin stays the caller's; the handler has no goroutines and nothing to close.
// When the database does not answer it shows pglock_up 0, with status 200, and no other number of the database, unless
// somebody has locked a whole table: then those of blocked transactions.
//
// Errors: pglock.ErrInvalid.
func New(admin *lockadmin.Admin, c Config) (http.Handler, error) {
	collector, err := NewCollector(admin, c)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector); err != nil {
		return nil, fmt.Errorf("register the collector: %w", err)
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: inFlight}), nil
}

// within is for what serves several requests at once, and so must not end with the first of them.
func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
