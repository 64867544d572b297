package otelpglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func attributesOf(s tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, kv := range s.Attributes {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

func TestACallsTraceShowsItsWaitAndItsLease(t *testing.T) {
	db := pgtest.Parallel(t)
	s := newTelemetry(t)
	first, second := startClient(t, db), startClient(t, db, pglock.WithObserver(s), pglock.WithDefaultHolder("me"))
	held := mustAcquire(t.Context(), t, first, "orders/1")

	began := time.Now()
	ctx, request := s.traces.Tracer("application").Start(t.Context(), "request")
	got := make(chan *pglock.Lease)
	go func() {
		l, _ := second.Acquire(ctx, "orders/1")
		got <- l
	}()
	waiting := s.await(t, pglock.EventWait)
	must.Do(t, held.Release(t.Context()))
	l := <-got
	if err := l.Release(t.Context()); err != nil { // with a context that has no span
		t.Fatal(err)
	}
	s.await(t, pglock.EventRelease)
	request.End()

	spans := s.spans.GetSpans()
	if len(spans) != 3 || spans[0].Name != "pglock.acquire" || spans[1].Name != "pglock.hold" {
		t.Fatalf("spans %v", spans)
	}
	acquire, hold, parent := spans[0], spans[1], request.SpanContext()
	for _, span := range spans[:2] {
		if span.Parent.SpanID() != parent.SpanID() || span.SpanContext.TraceID() != parent.TraceID() ||
			span.Status.Code != codes.Unset {
			t.Errorf("%s: parent %v, status %v", span.Name, span.Parent, span.Status)
		}
		if span.StartTime.Before(began) || span.EndTime.After(time.Now()) || span.EndTime.Before(span.StartTime) {
			t.Errorf("%s: from %v to %v", span.Name, span.StartTime, span.EndTime)
		}
		a := attributesOf(span)
		if a["pglock.lock.name"] != "orders/1" || a["pglock.lock.holder"] != "me" ||
			a["pglock.lock.token"] != fmt.Sprint(l.Token()) || a["db.system.name"] != "postgresql" {
			t.Errorf("%s: %v", span.Name, a)
		}
	}
	if !acquire.StartTime.Before(waiting.At) || !acquire.EndTime.After(waiting.At) {
		t.Errorf("the acquire is from %v to %v, and began to wait at %v", acquire.StartTime, acquire.EndTime,
			waiting.At)
	}
	if acquire.SpanKind != trace.SpanKindClient || attributesOf(acquire)["pglock.grant.way"] != "queue" ||
		attributesOf(acquire)["pglock.queue.place"] != "1" {
		t.Errorf("acquire: %v %v", acquire.SpanKind, acquire.Attributes)
	}
	if len(hold.Links) != 1 || hold.Links[0].SpanContext.SpanID() != acquire.SpanContext.SpanID() ||
		attributesOf(hold)["pglock.lease.end"] != "release" {
		t.Errorf("hold: links %v, %v", hold.Links, hold.Attributes)
	}
	if gap := hold.StartTime.Sub(acquire.EndTime); gap < -time.Second || gap > time.Second {
		t.Errorf("the hold begins %v after the end of its acquire", gap)
	}
}

func TestALossAndAFailureAreErrorsInTheirSpans(t *testing.T) {
	db := pgtest.Parallel(t)
	s := newTelemetry(t)
	c := startClient(t, db, pglock.WithObserver(s))
	admin := must.Get(lockadmin.New(t.Context(), db.Pool(t)))(t)
	l := mustAcquire(t.Context(), t, c, "orders/1")
	if _, err := c.TryAcquire(t.Context(), "orders/1"); !errors.Is(err, pglock.ErrHeld) {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Acquire(ended, "orders/1"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must.Get(admin.Break(t.Context(), "orders/1", "a test", lockadmin.BreakOptions{}))(t)
	if err := hooks.Of(l).Renew(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	s.await(t, pglock.EventLost)
	spans := s.spans.GetSpans()
	if len(spans) != 4 {
		t.Fatalf("spans %v", spans)
	}
	for i, want := range []struct {
		name, failure string
		status        codes.Code
	}{{"pglock.acquire", "", codes.Unset}, {"pglock.acquire", "held", codes.Unset},
		{"pglock.acquire", "canceled", codes.Error}, {"pglock.hold", "lost", codes.Error}} {
		if a := attributesOf(spans[i]); spans[i].Name != want.name || a["error.type"] != want.failure ||
			spans[i].Status.Code != want.status {
			t.Errorf("span %d: %s %v %v, want %v", i, spans[i].Name, a, spans[i].Status, want)
		}
	}
	if a := attributesOf(spans[3]); a["pglock.loss.reason"] != "broken" || a["pglock.lease.end"] != "lost" {
		t.Errorf("hold: %v", a)
	}
}

// The caller's trace is not sampled: the hold is no trace of its own, whatever the context of the call that releases.
func TestALeaseInATraceThatIsNotSampledHasNoSpan(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t)
	event := func(ctx context.Context, kind pglock.EventKind, token pglock.Token) {
		s.Observer.Observe(ctx, pglock.Event{Kind: kind, At: time.Now(), Lock: "orders/1",
			Mode: pglock.ModeExclusive, Token: token})
	}
	unsampled := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	for token, end := range []pglock.EventKind{pglock.EventRelease, pglock.EventLost} {
		event(unsampled, pglock.EventGrant, pglock.Token(token+1))
		event(t.Context(), end, pglock.Token(token+1))
	}
	if spans := s.spans.GetSpans(); len(spans) != 0 {
		t.Errorf("spans %v", spans)
	}
	event(t.Context(), pglock.EventGrant, 3)
	event(unsampled, pglock.EventRelease, 3)
	if spans := s.spans.GetSpans(); len(spans) != 2 {
		t.Errorf("spans of a lease that belongs to no trace: %v", spans)
	}
}

// Events that end a lease may be dropped.
func TestLeasesWhoseEndWasDroppedAreForgotten(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t)
	event := func(kind pglock.EventKind, token pglock.Token) {
		s.Observer.Observe(t.Context(), pglock.Event{Kind: kind, At: time.Now(), Lock: "orders/1",
			Mode: pglock.ModeExclusive, Token: token})
	}
	const most = 10_000
	for token := range most + 2 {
		event(pglock.EventGrant, pglock.Token(token+1))
	}
	event(pglock.EventGrant, 3) // the same lease of another database
	s.spans.Reset()
	event(pglock.EventRelease, 1)
	event(pglock.EventRelease, 2)
	event(pglock.EventRelease, 3)
	event(pglock.EventRelease, most+2)
	links := ""
	for _, span := range s.spans.GetSpans() {
		links += string(rune('0' + len(span.Links)))
	}
	if links != "0011" {
		t.Errorf("links of the holds: %s, want 0011: the oldest two are forgotten", links)
	}
}
