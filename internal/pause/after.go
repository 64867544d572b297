package pause

import (
	"context"
	"time"
)

// After calls f in a goroutine once ctx has ended. The function that it returns prevents that, or waits for f.
func After(ctx context.Context, f func()) (join func()) {
	done := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() { defer close(done); f() })
	return func() {
		if !cancel() {
			<-done
		}
	}
}

// OutOfTime reports whether the time limit of ctx has ended a statement, as far as its time tells.
func OutOfTime(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < 100*time.Millisecond
}
