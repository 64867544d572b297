package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// holdAgain holds a lock with a short TTL until ctx ends, takes it again when it is lost, and returns how often it was.
func holdAgain(ctx context.Context, c *pglock.Client, name string, ttl time.Duration) (lost int, err error) {
	for {
		l, err := c.Acquire(ctx, name, pglock.WithTTL(ttl))
		switch {
		case ctx.Err() != nil:
			return lost, nil
		case errors.Is(err, pglock.ErrLost): // the answer took too long
			lost++
			continue
		case err != nil:
			return lost, err
		}
		select {
		case <-l.Context().Done():
			lost++
		case <-ctx.Done():
			if err := l.Release(context.WithoutCancel(ctx)); !errors.Is(err, pglock.ErrLost) {
				return lost, err
			}
			return lost, nil
		}
	}
}

// A lease of 100 ms has to be renewed thirty times a second, on the connection that renews thousands of long ones. A
// server has to be slow for them, so fewer would show nothing.
func TestThousandsOfLongLeasesAndAShortOneKeepEachOther(t *testing.T) {
	// and alone on the machine, as far as that can be: a lease of 100 ms needs it
	pgtest.Long(t, "TestThousandsOfLongLeasesCostNoShortOne")
	db := pgtest.Database(t)
	c := newClient(t, db.Pool(t))
	alone := newClient(t, db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 }))
	const ttl = 12 * time.Second
	leases := make([]*pglock.Lease, 9000)
	taking := pgtest.Group(t)
	for part := range 50 {
		taking.Go(func() {
			for i := part; i < len(leases); i += 50 {
				var err error
				if leases[i], err = c.TryAcquire(t.Context(), fmt.Sprint("long ", i), pglock.WithTTL(ttl)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	taking.Wait()
	if t.Failed() {
		t.FailNow()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	holding := pgtest.Group(t)
	var beside, control int
	hold := func(c *pglock.Client, name string, lost *int) {
		holding.Go(func() {
			var err error
			if *lost, err = holdAgain(ctx, c, name, pglock.MinTTL); err != nil {
				t.Error(err)
			}
		})
	}
	hold(c, "short beside many", &beside)
	hold(alone, "short alone", &control)
	for began := time.Now(); time.Since(began) < 2*ttl; {
		time.Sleep(50 * time.Millisecond) // between two looks
		lost := 0
		for _, l := range leases {
			if !l.Valid() {
				lost++
			}
		}
		if lost > 0 {
			t.Fatalf("%d of %d leases of %v are lost after %v", lost, len(leases), ttl, time.Since(began))
		}
	}
	cancel()
	holding.Wait()
	// On a machine that stands still both are lost.
	t.Logf("a lease of %v was lost %d times beside %d others, and %d times alone", pglock.MinTTL, beside, len(leases),
		control)
	if beside > 3*control+5 {
		t.Error("its loss is not the machine's doing")
	}
}
