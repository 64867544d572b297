package otelpglock

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/pglock-dev/pglock/pglock"
)

// mostHeld limits how many leases spans remembers. It forgets the oldest first, because the event that ends a lease may
// have been dropped.
const mostHeld = 10_000

// spans makes spans of events. Several clients may use it at the same time.
type spans struct {
	tracer trace.Tracer

	mu   sync.Mutex
	held map[lease]*list.Element // of grant
	age  *list.List              // the same, the oldest first
}

// lease is what distinguishes a lease from all others of one database.
type lease struct {
	lock  string
	token pglock.Token
}

type grant struct {
	lease   lease
	parent  context.Context // of the call that acquired
	acquire trace.SpanContext
}

func newSpans(t trace.Tracer) *spans {
	return &spans{tracer: t, held: map[lease]*list.Element{}, age: list.New()}
}

// acquire makes the span of a call that asked for a lock, and returns ctx with it, for exemplars.
func (s *spans) acquire(ctx context.Context, e pglock.Event) context.Context {
	with, span := s.tracer.Start(ctx, "pglock.acquire", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithTimestamp(e.At.Add(-e.Waited)))
	if !span.IsRecording() {
		if in := trace.SpanContextFromContext(ctx); e.Kind == pglock.EventGrant && in.IsValid() && !in.IsSampled() {
			s.remember(grant{lease{e.Lock, e.Token}, ctx, span.SpanContext()}) // its hold belongs to that trace, too
		}
		return ctx
	}
	span.SetAttributes(describe(e)...)
	if e.Place > 0 {
		span.SetAttributes(keyPlace.Int(e.Place))
	}
	switch {
	case e.Kind == pglock.EventGrant:
		span.SetAttributes(keyWay.String(way(e)))
		s.remember(grant{lease{e.Lock, e.Token}, ctx, span.SpanContext()})
	case e.Err != nil:
		span.SetAttributes(semconv.ErrorTypeKey.String(failure(e.Err)))
		if !errors.Is(e.Err, pglock.ErrHeld) { // an answer as good as any
			span.SetStatus(codes.Error, e.Err.Error())
		}
	}
	span.End(trace.WithTimestamp(e.At))
	return with
}

// hold makes the span of a lease that has ended.
func (s *spans) hold(ctx context.Context, e pglock.Event, how string) {
	options := []trace.SpanStartOption{trace.WithTimestamp(e.At.Add(-e.Held))}
	if g, known := s.forget(lease{e.Lock, e.Token}); known {
		ctx = g.parent
		options = append(options, trace.WithLinks(trace.Link{SpanContext: g.acquire}))
	}
	_, span := s.tracer.Start(ctx, "pglock.hold", options...)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(describe(e)...)
	span.SetAttributes(keyEnd.String(how))
	if e.Kind == pglock.EventLost {
		span.SetAttributes(keyReason.String(string(e.Reason)))
	}
	if e.Err != nil {
		span.SetAttributes(semconv.ErrorTypeKey.String(failure(e.Err)))
		span.SetStatus(codes.Error, e.Err.Error())
	}
	span.End(trace.WithTimestamp(e.At))
}

// describe gives the attributes of a lease or of a request.
func describe(e pglock.Event) []attribute.KeyValue {
	all := []attribute.KeyValue{semconv.DBSystemNamePostgreSQL, keyName.String(e.Lock), keyMode.String(string(e.Mode)),
		keyHolder.String(e.Holder)}
	if e.Token != 0 {
		all = append(all, keyToken.Int64(int64(e.Token)), keySlot.Int(e.Slot))
	}
	return all
}

func (s *spans) remember(g grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(s.held[g.lease]) // the same token of another database
	s.held[g.lease] = s.age.PushBack(g)
	if s.age.Len() > mostHeld {
		s.drop(s.age.Front())
	}
}

func (s *spans) forget(l lease) (grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	element, known := s.held[l]
	if !known {
		return grant{}, false
	}
	return s.drop(element), true
}

// drop forgets an element, under s.mu; nil is none.
func (s *spans) drop(element *list.Element) grant {
	if element == nil {
		return grant{}
	}
	g := s.age.Remove(element).(grant)
	delete(s.held, g.lease)
	return g
}
