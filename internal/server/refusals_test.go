package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// refusing is what a dial fails with where nobody listens.
func refusing(t *testing.T) error {
	t.Helper()
	_, err := pgconn.Connect(t.Context(), "postgres://127.0.0.1:1/x?sslmode=disable")
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("a port where nobody listens: %v", err)
	}
	return err
}

func none() bool { return false }

func TestAfterARefusalCallsMakeOneAttemptTogether(t *testing.T) {
	refused := refusing(t)
	synctest.Test(t, func(t *testing.T) {
		const outage = 10 * time.Second
		var (
			r        refusals
			callers  sync.WaitGroup
			attempts atomic.Int32
			back     atomic.Bool
		)
		lend := func() error {
			forAll, err := r.enter(t.Context(), none)
			if err != nil {
				return err
			}
			attempts.Add(1)
			time.Sleep(time.Millisecond)
			if !back.Load() {
				r.failed(t.Context(), refused)
				return refused
			}
			if forAll != nil {
				r.came(forAll)
			}
			return nil
		}
		last := make([]time.Duration, 100) // from the end of the outage to a connection
		refusals := make([]int, len(last))
		began := time.Now()
		for i := range last {
			callers.Go(func() {
				for lend() != nil {
					refusals[i]++
					time.Sleep(20 * time.Millisecond)
				}
				last[i] = time.Since(began) - outage
			})
		}
		time.Sleep(outage)
		// Each begins once. Then the pause doubles, and is half a second in the middle.
		if n := int(attempts.Load()); n < len(last)+10 || n > len(last)+50 {
			t.Errorf("%d attempts of %d callers in %v", n, len(last), outage)
		}
		back.Store(true)
		callers.Wait()
		for i, d := range last {
			if refusals[i] < 10 {
				t.Errorf("a call heard of %d refusals in %v", refusals[i], outage)
			}
			if d > refusedMost*3/2+100*time.Millisecond {
				t.Errorf("a connection came %v after the server was back", d)
			}
		}
		if forAll, err := r.enter(t.Context(), none); forAll != nil || err != nil {
			t.Errorf("the server takes connections, and yet: %v, %v", forAll, err)
		}
	})
}

func TestAnAttemptThatHangsHoldsUpNoOther(t *testing.T) {
	refused := refusing(t)
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.failed(t.Context(), refused)
		hangs := must.Get(r.enter(t.Context(), none))(t)
		began := time.Now()
		other := must.Get(r.enter(t.Context(), none))(t)
		if hangs == nil || other == nil || time.Since(began) > refusedMost {
			t.Fatalf("attempts: %v and %v, the other after %v", hangs, other, time.Since(began))
		}
		waits := make(chan error)
		go func() {
			_, err := r.enter(t.Context(), none)
			waits <- err
		}()
		synctest.Wait()
		if r.came(other); <-waits != nil {
			t.Error("another's connection came, and the call that waited did not go on")
		}
		r.failed(t.Context(), context.DeadlineExceeded)
		if forAll, err := r.enter(t.Context(), none); forAll != nil || err != nil {
			t.Errorf("an attempt that ran out of time is no refusal, and yet: %v, %v", forAll, err)
		}
	})
}

func TestAttemptsThatHangLetEverybodyGoOn(t *testing.T) {
	refused := refusing(t)
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.failed(t.Context(), refused)
		began := time.Now()
		var callers sync.WaitGroup
		for range 50 {
			callers.Go(func() {
				if _, err := r.enter(t.Context(), none); err != nil {
					t.Error(err)
				}
			})
		}
		if callers.Wait(); time.Since(began) > refusedPatience+refusedMost {
			t.Errorf("the last call went on after %v", time.Since(began))
		}
	})
}

// On a full server the connections that are open work, and no other comes.
func TestAConnectionThatWasOpenDoesNotEndThePause(t *testing.T) {
	refused := refusing(t)
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.failed(t.Context(), refused)
		forAll := must.Get(r.enter(t.Context(), none))(t)
		r.failed(t.Context(), refused)
		if r.came(forAll); r.awaited() == nil {
			t.Error("the attempt was refused, and the calls go on to ask for connections")
		}
		if r.came(must.Get(r.enter(t.Context(), none))(t)); r.awaited() != nil {
			t.Error("a connection came, and the calls wait")
		}
	})
}

// It is no attempt either when one is due, and says nothing of others.
func TestAnIdleConnectionOfThePoolNeedsNoAttempt(t *testing.T) {
	refused := refusing(t)
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.failed(t.Context(), refused)
		for _, after := range []time.Duration{0, refusedMost} {
			time.Sleep(after)
			began := time.Now()
			forAll, err := r.enter(t.Context(), func() bool { return true })
			if forAll != nil || err != nil || time.Since(began) > 0 {
				t.Errorf("%v after a refusal, after %v: %v, %v", after, time.Since(began), forAll, err)
			}
		}
	})
}

func TestTheEndOfACallThatWaitsForAnAttemptTellsTheRefusal(t *testing.T) {
	refused := refusing(t)
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.failed(t.Context(), refused)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := r.enter(ctx, none)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the end of a call that waits: %v", err)
		}
	})
}

// The application's own use of the pool may have been enough since, and nobody has asked for another connection.
func TestAnOldTroubleDoesNotLengthenTheNext(t *testing.T) {
	refused := refusing(t)
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		for range 10 {
			r.failed(t.Context(), refused)
			_, _ = r.enter(t.Context(), none)
		}
		time.Sleep(time.Hour)
		if _, err := r.enter(t.Context(), none); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.enter(ended, none); errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a call is told of an hour ago: %v", err)
		}
		r.failed(t.Context(), refused)
		began := time.Now()
		if _, err := r.enter(t.Context(), none); err != nil || time.Since(began) > 4*refusedFirst {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
