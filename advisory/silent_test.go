package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// A call whose ctx ends where nobody answers returns within a quarter of a second: a write between two statements, and
// an acquire that waits for an old program.
func TestACallReturnsSoonAfterItsContextHasEndedInSilence(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var cut atomic.Bool
	silent := s.cuttable(&cut)
	dialed := make(chan net.Conn, 1000)
	s.pool = s.db.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := silent.DialFunc(ctx, network, address)
			if err == nil {
				dialed <- conn
			}
			return conn, err
		}
	})
	defer func() {
		cut.Store(false)
		for len(dialed) > 0 { // what comes after the test need not wait
			_ = (<-dialed).Close()
		}
	}()
	o := s.old("1")
	if !o.try() {
		t.Fatal("the lock is not free")
	}
	b, written := s.bridge(), int64(0)
	for what, call := range map[string]func(ctx context.Context, silence func()) error{
		"a write": func(ctx context.Context, silence func()) error {
			written++
			h := must.Get(b.Acquire(ctx, fmt.Sprint("written ", written), advisory.Bigint(100+written)))(t)
			t.Cleanup(func() { _ = h.Release(t.Context()) })
			return h.Under(fencedstore.Fence{SameToken: true}).Write(ctx, func(ctx context.Context, _ pgx.Tx) error {
				silence()
				<-ctx.Done()
				return ctx.Err()
			})
		},
		"an acquire": func(ctx context.Context, silence func()) error {
			go func() {
				s.eventually("the bridge to wait", "SELECT count(*) = 1 FROM advisory_locks WHERE NOT granted")
				silence()
			}()
			_, err := b.Acquire(ctx, "waited for", advisory.Bigint(1))
			return err
		},
	} {
		soonest := time.Hour
		for try := 0; try < 10 && soonest > 250*time.Millisecond; try++ { // a busy machine may stand still
			cut.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			ended := make(chan time.Time, 1)
			err := call(ctx, func() {
				cut.Store(true)
				time.AfterFunc(100*time.Millisecond, func() { ended <- time.Now(); cancel() })
			})
			soonest = min(soonest, time.Since(await(t, "the end of the context", ended)))
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want context.Canceled", what, err)
			}
		}
		if soonest > 250*time.Millisecond {
			t.Errorf("%s returned %v after the end of its context", what, soonest)
		}
	}
}
