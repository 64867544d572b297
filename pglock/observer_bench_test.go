package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// quickStore grants and releases at once, and notes nothing.
type quickStore struct {
	*fakeStore
	token int64
}

func (s *quickStore) Acquire(_ context.Context, q protocol.Request) (protocol.Answer, error) {
	s.token++
	return protocol.Answer{Granted: true, Token: s.token, Remaining: q.TTL}, nil
}

func (s *quickStore) Release(context.Context, protocol.Claim, bool) (protocol.Ending, error) {
	return protocol.Ending{Released: true}, nil
}

func quickClient(tb testing.TB, opts ...Option) *Client {
	tb.Helper()
	config := must.Get(newConfig(opts))(tb)
	c := must.Get(newClient(config, &quickStore{fakeStore: newFakeStore()}, trust.SystemClock()))(tb)
	tb.Cleanup(func() { _ = c.Close(context.WithoutCancel(tb.Context())) })
	return c
}

// BenchmarkObserver takes and releases a lock over a store that answers at once: what the client itself costs.
func BenchmarkObserver(b *testing.B) {
	for _, bm := range []struct {
		name string
		opts []Option
	}{
		{"none", nil},
		{"one", []Option{WithObserver(ObserverFunc(func(context.Context, Event) {}))}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			c := quickClient(b, bm.opts...)
			b.ReportAllocs()
			for b.Loop() {
				l := must.Get(c.TryAcquire(b.Context(), "report"))(b)
				must.Do(b, l.Release(b.Context()))
			}
		})
	}
}

func TestWithoutAnObserverEventsAllocateNothing(t *testing.T) {
	c := quickClient(t)
	r := must.Get(c.newRequest("report", nil))(t)
	l := must.Get(c.TryAcquire(t.Context(), "report", WithTTL(time.Hour)))(t)
	now, ctx := c.now(), t.Context()
	allocated := testing.AllocsPerRun(100, func() {
		r.sight = c.look(ctx)
		c.waiting(&r, protocol.Answer{Place: 1})
		c.failed(&r, ErrHeld)
		l.held(now)
		var did tally
		did.renewed(l, gap{d: time.Second, late: true})
		did.failed(l, time.Second)
		c.tellRenewals(c.observing.outside(), did, now, errReset)
		l.write(ctx, hooks.Observed{Kind: string(EventWrite), Resource: "report"})
		l.noteEnd(now, ErrReleased, false)
		l.released(ctx, nil)
		l.outlived(ctx)
		c.polls(1, time.Second, errReset)
	})
	if allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}
