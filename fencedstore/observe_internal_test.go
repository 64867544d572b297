package fencedstore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pglock-dev/pglock/pglock"
)

func TestKindOfAnErrorForTheObserver(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want pglock.EventKind
	}{
		{&OutcomeUnknownError{Err: pglock.ErrLost}, pglock.EventOutcomeUnknown},
		{fmt.Errorf("write: %w", &pglock.LostError{}), pglock.EventRefused},
		{pglock.ErrReleased, pglock.EventRefused},
		{pglock.ErrWrongDatabase, pglock.EventRefused},
		{pglock.ErrPermission, pglock.EventRefused},
		{ErrKeyTooOld, pglock.EventRefused},
		{ErrDone, ""},
		{pglock.ErrInvalid, ""},
		{pglock.ErrHeld, ""},
		{errors.New("the application's own"), ""},
		{nil, ""},
	} {
		if got := kindOf(tc.err); got != string(tc.want) {
			t.Errorf("kind of %v: %q, want %q", tc.err, got, tc.want)
		}
	}
}
