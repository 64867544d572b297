package integration

import (
	"context"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// inLongTier leaves a test of turns or blocks to the long tier: what locks promise is shown in small without them.
func inLongTier(t *testing.T) {
	t.Helper()
	pgtest.Long(t, "TestI1_I2_AllWaysAreOneMutex")
}

const long = pgtest.LargeLoads

// inThousands is how many there are of what comes in thousands: a fifth outside the long tier.
func inThousands(n int) int {
	if pgtest.LargeLoads {
		return n
	}
	return n / 5
}

// lasting is how long there is load of a kind, at least: an eighth outside the long tier, where load ends when there was
// enough of it to show something.
func lasting(d time.Duration) time.Duration {
	if pgtest.LargeLoads {
		return d
	}
	return d / 8
}

// rarely is how often something dear is done: half as often outside the long tier.
func rarely(n int) int {
	if pgtest.LargeLoads {
		return n
	}
	return (n + 1) / 2
}

// underLoad ends when there was load for so long, less outside the long tier, and p's query says that it was enough
// to show something: a busy machine needs longer. It ends within patience. Nobody else uses p before it has ended.
func underLoad(t *testing.T, d time.Duration, p *peer, enough string) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer cancel()
		for began := time.Now(); time.Since(began) < patience && ctx.Err() == nil; {
			time.Sleep(10 * time.Millisecond) // between two looks
			var yes bool
			if time.Since(began) >= lasting(d) && (p.QueryRow(ctx, enough).Scan(&yes) != nil || yes) {
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-over })
	return ctx
}
