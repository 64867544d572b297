package dashboard

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// The policy and the sizes for the tests.
const (
	Policy     = policy
	BreakBytes = breakBytes
)

// ViewIll is what the page says of an overview.
var ViewIll = viewIll

// ReadWithin is how long a read has.
const ReadWithin = readWithin

// InTurn runs f when there is room for it.
var InTurn = inTurn

// NewShared makes requests share reads.
func NewShared() func(context.Context, string, func(context.Context) (any, error)) (any, error) {
	return newShared().read
}

// SetPace makes streams faster.
func (c *Config) SetPace(poll, quiet, piece, whole time.Duration) {
	c.pace = defaultPace
	c.pace.poll, c.pace.quiet, c.pace.piece, c.pace.whole = poll, quiet, piece, whole
}

// SetAgain has a lock told again after another time.
func (c *Config) SetAgain(d time.Duration) {
	c.pace = cmp.Or(c.pace, defaultPace)
	c.pace.again = d
}

// SetBodyTime gives clients less time to send a body.
func (c *Config) SetBodyTime(d time.Duration) {
	c.pace = defaultPace
	c.pace.body = d
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
