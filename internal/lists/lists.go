// Package lists reads the lists of package lockadmin, and times from their entries.
package lists

import (
	"iter"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// SeenAt is when the server looked at a lease that is held, by its own clock.
func SeenAt(i pglock.LockInfo) time.Time { return i.ExpiresAt.Add(-i.Remaining) }

// HeldFor is how long a lease had been held then; 0 if it is not held.
func HeldFor(i pglock.LockInfo) time.Duration {
	if !i.Held {
		return 0
	}
	return max(0, SeenAt(i).Sub(i.AcquiredAt))
}

// All reads a list to its end, or to its error.
func All[T any](list iter.Seq2[T, error]) ([]T, error) {
	all, _, err := First(0, list)
	return all, err
}

// First reads the first n entries of a list, and reports whether there are more. 0 means all entries.
func First[T any](n int, list iter.Seq2[T, error]) (some []T, more bool, err error) {
	return first(n, list, func(T, T) bool { return false })
}

// FirstLocks is First for locks in the order of names. It keeps the holders of a lock together: it also reads the other
// holders of the last lock, so that a list after that lock leaves nobody out.
func FirstLocks(n int, list iter.Seq2[pglock.LockInfo, error]) (some []pglock.LockInfo, more bool, err error) {
	return first(n, list, func(last, next pglock.LockInfo) bool { return last.Name == next.Name })
}

func first[T any](n int, list iter.Seq2[T, error], together func(last, next T) bool) (some []T, more bool, err error) {
	some = []T{}
	for one, err := range list {
		switch {
		case err != nil:
			return nil, false, err
		case n > 0 && len(some) >= n && !together(some[len(some)-1], one):
			return some, true, nil
		}
		some = append(some, one)
	}
	return some, false, nil
}
