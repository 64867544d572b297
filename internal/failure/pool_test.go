package failure

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestTheEndOfAWaitForAFullPoolSaysSo(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx        context.Context
		err        error
		used, most int
		says       bool
	}{
		{ended, context.Canceled, 4, 4, true},
		{ended, context.Canceled, 3, 4, false}, // one is being opened
		{ended, context.Canceled, 9, 0, false},
		{ended, io.EOF, 4, 4, false},
		{t.Context(), context.Canceled, 4, 4, false}, // somebody else's end
	} {
		err := OfPool(c.ctx, c.err, time.Now().Add(-time.Hour), c.used, c.most)
		if says := strings.HasPrefix(err.Error(), "no connection of the pool in 1"); says != c.says ||
			!errors.Is(err, c.err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
