package leader_test

import (
	"context"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// Package leader has no events besides those of its lease, which tell of a leader that works on after its leadership.
func TestWorkThatOutlivesItsLeadershipIsObserved(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	events := make(chan pglock.Event, 100)
	c := e.client(pglock.WithObserver(pglock.ObserverFunc(func(_ context.Context, event pglock.Event) {
		switch event.Kind {
		case pglock.EventGrant, pglock.EventLost, pglock.EventOutlived:
			events <- event
		}
	})))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error)
	broken, told, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
	candidate := must.Get(leader.New(c, "x"))(t)
	go func() {
		over <- candidate.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
			<-broken
			_, _ = lease.Check(ctx) // the heartbeat would find it out, too
			<-ctx.Done()
			close(told)
			<-stop
			cancel() // one term is enough
			return nil
		})
	}()
	next := func(kind pglock.EventKind) pglock.Event {
		t.Helper()
		event := receive(t, events, string(kind))
		if event.Kind != kind || event.Lock != "x" {
			t.Fatalf("event %+v, want %q", event, kind)
		}
		return event
	}
	granted := next(pglock.EventGrant)
	e.breaks()
	close(broken)
	if lost := next(pglock.EventLost); lost.Reason != pglock.ReasonBroken || lost.Token != granted.Token {
		t.Errorf("event %+v", lost)
	}
	<-told
	close(stop)
	if late := next(pglock.EventOutlived); late.Late <= 0 || late.Token != granted.Token {
		t.Errorf("event %+v", late)
	}
	<-over
}
