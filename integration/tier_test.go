package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// inThousands is how many there are of what comes in thousands: a fifth outside the long tier.
func inThousands(n int) int {
	if pgtest.LargeLoads {
		return n
	}
	return n / 5
}

// rounds is how often something is repeated, at least once: a quarter as often in the short tier.
func rounds(n int) int {
	if pgtest.EveryTest {
		return n
	}
	return (n + 3) / 4
}

// fewLevels are the isolation levels of a test in which each costs much: the two with snapshots are alike to it.
func fewLevels() []pgx.TxIsoLevel {
	if pgtest.EveryTest {
		return levels
	}
	return []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable}
}

// lasting is how long there is load of a kind, at least: an eighth outside the long tier, where load ends when there
// was enough of it to show something, and a thirtieth in the short one.
func lasting(d time.Duration) time.Duration {
	switch {
	case pgtest.LargeLoads:
		return d
	case pgtest.EveryTest:
		return d / 8
	}
	return d / 30
}

// rarely is how often something dear is done: half as often outside the long tier.
func rarely(n int) int {
	if pgtest.LargeLoads {
		return n
	}
	return (n + 1) / 2
}

// underLoad ends when there was load for so long, less outside the long tier, and p's query says that it was enough
// to show something: a busy machine needs longer. The test fails if there never was. Nobody else uses p before it has
// ended.
func underLoad(t *testing.T, d time.Duration, p *peer, enough string) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer cancel()
		for began := time.Now(); time.Since(began) < 2*patience && ctx.Err() == nil; {
			time.Sleep(10 * time.Millisecond) // between two looks
			var yes bool
			if time.Since(began) < lasting(d) {
				continue
			}
			if err := p.QueryRow(ctx, enough).Scan(&yes); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", enough, err)
				return
			}
			if yes {
				return
			}
		}
		if ctx.Err() == nil {
			t.Errorf("the load of %v was not enough: %s", 2*patience, enough)
		}
	}()
	t.Cleanup(func() { cancel(); <-over })
	return ctx
}
