package leader

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// The lease is lost before fn is called, and the loss may be noted while call sets out.
func TestALossBeforeTheWorkBeginsIsNotForgotten(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	client := must.Get(pglock.New(t.Context(), pool))(t)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	c := must.Get(New(client, "x"))(t)
	lease := must.Get(client.Acquire(t.Context(), "x"))(t)
	must.Get(pool.Exec(t.Context(), "SELECT pglock.break_lock('x', 'test', 'test')"))(t)
	if _, err := lease.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatalf("Check: %v, want ErrLost", err)
	}
	for n := range 1000 {
		var begun atomic.Bool
		ends, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = c.call(t.Context(), lease, func(context.Context, *pglock.Lease) error {
				begun.Store(true)
				<-ends
				return nil
			})
		}()
		for !begun.Load() { // call waits for the mutex now and then, and who notes the loss may come before it
			c.mu.Lock()
			runtime.Gosched()
			c.mu.Unlock()
		}
		stands := sinceStands(c)
		close(ends)
		if <-ended; !stands {
			t.Fatalf("call %d does not know any more when the lease was lost", n)
		}
	}
}

// sinceStands waits until Status twice names the same moment. False: it never does.
func sinceStands(c *Candidate) bool {
	before := c.Status()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		now := c.Status()
		if now.State == StateDeposed && now.Since.Equal(before.Since) {
			return true
		}
		before = now
	}
	return false
}
