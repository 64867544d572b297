package dashboard

import (
	"maps"
	"slices"
	"time"
)

// The policy and the sizes for the tests.
const (
	Policy     = policy
	BreakBytes = breakBytes
)

// WithPace makes streams faster.
func WithPace(poll, quiet, piece, whole time.Duration) Option {
	return func(c *config) error {
		c.pace.poll, c.pace.quiet, c.pace.piece, c.pace.whole = poll, quiet, piece, whole
		return nil
	}
}

// WithBodyTime gives clients less time to send a body.
func WithBodyTime(d time.Duration) Option {
	return func(c *config) error {
		c.pace.body = d
		return nil
	}
}

// Watched counts the feeds and the streams.
func (d *Dashboard) Watched() (feeds, streams int) {
	d.feeds.mu.Lock()
	defer d.feeds.mu.Unlock()
	return len(d.feeds.open), d.feeds.streams
}

// Files names the files of the page.
func Files() []string {
	return slices.Collect(maps.Keys(readFiles()))
}
