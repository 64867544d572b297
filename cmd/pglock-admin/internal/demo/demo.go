// Package demo shows what a fence is for, with real processes and a real database: a worker is stopped while it holds
// a lock, another takes over, and then the first one's late write arrives.
package demo

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// The bounds of Options.
const (
	MinWorkers = 2
	MaxWorkers = 8
	MinTTL     = 200 * time.Millisecond
	MaxTTL     = 2500 * time.Millisecond // the whole story takes less than a quarter of a minute
)

// The defaults of Options, for flags.
const (
	DefaultWorkers = 2
	DefaultTTL     = 1500 * time.Millisecond
)

// WorkerCommand is the argument with which Run starts its own program again as a worker, which must call Work.
const WorkerCommand = "demo-worker"

var (
	// ErrUnsupported is Run's error on systems whose processes cannot be stopped and continued.
	ErrUnsupported = errors.New("demo: it stops and continues processes, which needs a Unix system")
	// ErrStory: the story did not end as it must. If the machine was not too busy, this is a bug.
	ErrStory = errors.New("demo: the story did not end as it must")
	// ErrTidy: something that the demo made could not be removed; the message names it.
	ErrTidy = errors.New("demo: something is left behind")
)

// Options say how to play.
type Options struct {
	// ConnString names the database to play in, in a schema that is dropped at the end. Defaults to a throwaway server.
	ConnString string
	// Seed determines the names and the amounts.
	Seed uint64
	// Workers is how many processes play, from MinWorkers to MaxWorkers.
	Workers int
	// TTL is that of the leases, from MinTTL to MaxTTL.
	TTL time.Duration
	// Plain asks for lines instead of a moving drawing.
	Plain bool
	// NoColour asks for a drawing without colours.
	NoColour bool
	// Out receives the story. A moving drawing needs a terminal.
	Out io.Writer
}

// An OptionError names an option whose value breaks a rule.
type OptionError struct {
	Option, Value, Rule string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("demo: %s is %s: it must be %s", e.Option, e.Value, e.Rule)
}

// Check reports, as an *OptionError, the first option that breaks its rule.
func (o Options) Check() error {
	switch {
	case o.Workers < MinWorkers || o.Workers > MaxWorkers:
		return &OptionError{"workers", fmt.Sprint(o.Workers), fmt.Sprintf("from %d to %d", MinWorkers, MaxWorkers)}
	case o.TTL < MinTTL || o.TTL > MaxTTL:
		return &OptionError{"ttl", o.TTL.String(), fmt.Sprintf("from %v to %v", MinTTL, MaxTTL)}
	}
	return nil
}
