package advisory

import (
	"errors"
	"fmt"

	"github.com/pglock-dev/pglock/pglock"
)

// ErrPooler: a pooler stands between the program and the server, so other programs may use the same session of the
// server.
var ErrPooler = errors.New("advisory: a pooler stands between the program and the server")

// HeldError says that another session has the advisory lock: an old program's, or that of a bridge whose lease has
// ended. It is a pglock.ErrHeld.
type HeldError struct {
	Lock string
	Key  Key
	PID  int32 // of a backend that had it at the last look; 0: none was found
}

func (e *HeldError) Error() string {
	s := fmt.Sprintf("advisory: lock %q: the advisory lock (%v) is held", e.Lock, e.Key)
	if e.PID != 0 {
		s += fmt.Sprintf(" by the backend with pid %d", e.PID)
	}
	return s
}

// Is reports whether target is pglock.ErrHeld.
func (e *HeldError) Is(target error) bool { return target == pglock.ErrHeld }

// LostError says that the session of the advisory lock has ended, or does not hold it any more. An old program may
// hold it. It is a pglock.ErrLost and nothing else: as with pglock.LostError, errors.Is and errors.As do not look into
// Err.
type LostError struct {
	Lock string
	Key  Key
	Err  error // what was wrong with the session; nil if the session works and no longer holds the lock
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("advisory: lock %q: the advisory lock (%v) is lost", e.Lock, e.Key)
	if e.Err != nil {
		return s + ": " + e.Err.Error()
	}
	return s + ": its session does not hold it any more"
}

// Is reports whether target is pglock.ErrLost.
func (e *LostError) Is(target error) bool { return target == pglock.ErrLost }
