package leader_test

import (
	"context"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// Close ends the context of fn with the lease, and goes on.
func TestCloseUnderTheContextOfFnLetsTheNextOneLeadAtOnce(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	client, next := e.client(), e.client()
	led := false
	_ = e.candidate(client).Run(t.Context(), func(ctx context.Context, _ *pglock.Lease) error {
		led = true
		must.Note(t, client.Close(ctx))
		must.Get(next.TryAcquire(t.Context(), "x"))(t)
		return nil
	})
	if !led {
		t.Error("it has not led")
	}
}
