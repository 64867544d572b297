// Package demo shows what a fence is for, with real processes and a real database: a worker is stopped while it holds
// a lock, another takes over, and then the first one's late write arrives.
package demo

import (
	"errors"
	"io"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
)

// The bounds of the options, and their defaults.
const (
	minWorkers     = 2
	maxWorkers     = 8
	minTTL         = 200 * time.Millisecond
	maxTTL         = 2500 * time.Millisecond // the whole story takes less than a quarter of a minute
	defaultWorkers = 2
	defaultTTL     = 1500 * time.Millisecond
)

var (
	// errStory: if the machine was not too busy, this is a bug.
	errStory = errors.New("demo: the story did not end as it must")
	// errTidy: something that the demo made could not be removed; the message names it.
	errTidy = errors.New("demo: something is left behind")
)

type options struct {
	connString string // of the database to play in, in a schema that is dropped at the end; "": a throwaway server
	address    string // the same for a shell, without a password
	seed       uint64 // determines the names and the amounts
	workers    int
	ttl        time.Duration // of the leases
	plain      bool          // without colours
	noColour   bool
	out        io.Writer
}

// check refuses the first option that is out of its bounds.
func (o options) check() error {
	const hint = "pglock-admin demo --help"
	switch {
	case o.workers < minWorkers || o.workers > maxWorkers:
		return cli.UsageErrorf(hint, "demo: workers is %d: it must be from %d to %d", o.workers, minWorkers, maxWorkers)
	case o.ttl < minTTL || o.ttl > maxTTL:
		return cli.UsageErrorf(hint, "demo: ttl is %v: it must be from %v to %v", o.ttl, minTTL, maxTTL)
	}
	return nil
}
