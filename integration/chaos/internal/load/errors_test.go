//go:build unix

package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

func TestErrorsAreNamedByWhatTheyTell(t *testing.T) {
	for want, err := range map[string]error{
		"":           nil,
		"unknown":    &fencedstore.OutcomeUnknownError{Err: io.EOF},
		"lost":       errors.Join(context.Canceled, &pglock.LostError{}),
		"deadline":   fmt.Errorf("%w: %w", context.DeadlineExceeded, &pglock.HeldError{}),
		"40P01":      errors.Join(&pgconn.PgError{Code: "40P01"}, &pglock.LostError{}),
		"40001":      fmt.Errorf("commit: %w", &pgconn.PgError{Code: "40001"}),
		"time limit": &pgconn.PgError{Code: "25P03"},
		"connection": fmt.Errorf("read: %w", io.ErrUnexpectedEOF),
		"other":      errors.New("no idea"),
	} {
		if got := classify(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}
