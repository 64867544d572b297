// Package pgdownload fetches PostgreSQL server programs for machines that have
// none installed, and keeps them.
package pgdownload

import (
	"errors"
	"fmt"
)

// ErrUnsupported is what Fetch gives on systems where no server could be
// started from what it fetches.
var ErrUnsupported = errors.New("pgdownload: programs are downloaded on Unix systems only")

// An Error is a download that failed.
type Error struct {
	Version string // of PostgreSQL
	Dir     string // where the programs would have been kept
	Err     error
}

func (e *Error) Error() string {
	return fmt.Sprintf("pgdownload: PostgreSQL %s into %s: %v", e.Version, e.Dir, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }
