package pglock

import (
	"context"
	"testing"
	"time"

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
	config, err := newConfig(opts)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := newClient(config, &quickStore{fakeStore: newFakeStore()}, trust.SystemClock())
	if err != nil {
		tb.Fatal(err)
	}
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
				l, err := c.TryAcquire(b.Context(), "report")
				if err != nil {
					b.Fatal(err)
				}
				if err := l.Release(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestWithoutAnObserverEventsAllocateNothing(t *testing.T) {
	c := quickClient(t)
	r, err := c.newRequest("report", nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.TryAcquire(t.Context(), "report", WithTTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
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
