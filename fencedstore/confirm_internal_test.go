package fencedstore

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/hooks"
)

// forgetful loses the connection of the first question.
type forgetful struct {
	database
	asked int
}

func (f *forgetful) look(context.Context, Receipt) (bool, error) {
	if f.asked++; f.asked == 1 {
		return false, io.ErrUnexpectedEOF
	}
	return false, nil
}

// That a key is done is asked until somebody answers, as any outcome is.
func TestI17_ADoneKeyIsConfirmedInASecondAttempt(t *testing.T) {
	t.Parallel()
	r := must.Get(newReceipt(hooks.Grant{Schema: "pglock", DatabaseID: uuid.New()}))(t)
	if err := confirmDone(t.Context(), &forgetful{}, r, &DoneError{Key: "k"}); !errors.Is(err, ErrDone) {
		t.Error(err)
	}
}
