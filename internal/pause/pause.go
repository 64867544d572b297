// Package pause waits, for as long as a context allows.
package pause

import (
	"context"
	"math"
	"math/rand/v2"
	"time"
)

// Never is the wait of a plan that only a wake-up ends.
const Never = time.Duration(math.MaxInt64)

// For waits about d, up to half more or less, and reports whether ctx is still alive.
func For(ctx context.Context, d time.Duration) bool { return Exactly(ctx, d/2+rand.N(d)) }

// Exactly waits d, and reports whether ctx is still alive.
func Exactly(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
