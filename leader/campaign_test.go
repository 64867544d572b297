package leader

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// refused makes a candidate whose campaigns fail with what err says of each.
func refused(err func(n int) error) (c *Candidate, at *[]time.Duration) {
	c, at = &Candidate{name: "x", since: time.Now()}, new([]time.Duration)
	began := time.Now()
	c.acquire = func(context.Context) (*pglock.Lease, error) {
		*at = append(*at, time.Since(began))
		return nil, err(len(*at))
	}
	return c, at
}

func TestCampaignGoesOnWhileTheServerIsAwayWithPausesThatGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("connection refused")
		c, at := refused(func(int) error { return away })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		pgtest.Group(t).Go(func() {
			time.Sleep(5 * time.Minute)
			if s := c.Status(); s.State != StateCampaigning || !errors.Is(s.Err, away) {
				t.Errorf("meanwhile: %+v", s)
			}
		})
		err := c.Run(ctx, func(context.Context, *pglock.Lease) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) ||
			err.Error() != `leader: run for lock "x": context deadline exceeded` {
			t.Errorf("Run: %v", err)
		}
		for i, moment := range (*at)[:len(*at)-1] { // the last pause ends with ctx
			if i == 0 {
				continue
			}
			most := min(50*time.Millisecond<<min(i-1, 10), 5*time.Second) // as Run says
			if pause := moment - (*at)[i-1]; pause < most/2 || pause > most {
				t.Errorf("pause %d is %v, want %v to %v", i, pause, most/2, most)
			}
		}
		if n := len(*at); n < 120 || n > 260 {
			t.Errorf("%d campaigns within ten minutes", n)
		}
	})
}

// The lock is granted in the moment in which ctx ends: it is given back, and fn is not called.
func TestCtxThatEndsWithTheGrantCallsNoFn(t *testing.T) {
	pool := pgtest.Database(t).Pool(t)
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer func() { _ = client.Close(context.Background()) }()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := New(client, "x")
	if err != nil {
		t.Fatal(err)
	}
	var lease *pglock.Lease
	c.acquire = func(ctx context.Context) (*pglock.Lease, error) {
		var err error
		lease, err = client.Acquire(ctx, "x")
		cancel()
		return lease, err
	}
	err = c.Run(ctx, func(context.Context, *pglock.Lease) error { return errors.New("fn ran") })
	const alone = `leader: run for lock "x": context canceled`
	if err == nil || err.Error() != alone || !errors.Is(lease.Err(), pglock.ErrReleased) {
		t.Errorf("Run: %v; the lease: %v", err, lease.Err())
	}
}

func TestCampaignEndsWhereItWouldFailAgainAndAgain(t *testing.T) {
	for _, cause := range []error{pglock.ErrInvalid, pglock.ErrSchema, pglock.ErrPermission, pglock.ErrClosed,
		pglock.ErrSelfDeadlock, pglock.ErrDeadlock} {
		synctest.Test(t, func(t *testing.T) {
			c, at := refused(func(n int) error {
				if n == 1 {
					return pglock.ErrReadOnly // as during a failover
				}
				return fmt.Errorf("acquire: %w", cause)
			})
			err := c.Run(t.Context(), func(context.Context, *pglock.Lease) error { return nil })
			if !errors.Is(err, cause) || len(*at) != 2 {
				t.Errorf("%v: Run: %v after %d campaigns", cause, err, len(*at))
			}
		})
	}
}
