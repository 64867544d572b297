package failure

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// What a loss of the lease says of a call, it does not say of one that may have been carried out.
func TestI17_AnUnknownOutcomeDoesNotMatchTheCauseOfItsContext(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	if err := At(ctx, ctx.Err(), "pglock: renew"); !errors.Is(err, lost) {
		t.Errorf("a call that was not carried out: %v, want the cause", err)
	}
	unknown := fmt.Errorf("%w: %w", ErrOutcomeUnknown, ctx.Err())
	err := At(ctx, unknown, "pglock: renew")
	if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) || errors.Is(err, lost) {
		t.Errorf("%v, want the unknown outcome and the end of the context, and not its cause", err)
	}
}
