package pgtest_test

import (
	"context"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A goroutine of a group that waits for the end of the test's context is still heard.
func TestATestEndsAfterTheGoroutinesOfItsGroup(t *testing.T) {
	t.Parallel()
	heard := false
	t.Run("a test that leaves early", func(t *testing.T) {
		ctx := t.Context()
		pgtest.Group(t).Go(func() {
			<-ctx.Done()
			heard = context.Cause(ctx) != nil
			t.Log("a report") // it panics after the end of the test
		})
	})
	if !heard {
		t.Error("the test did not wait")
	}
}
