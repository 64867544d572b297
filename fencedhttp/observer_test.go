package fencedhttp_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// broken is a store that fails.
type broken struct{}

func (broken) Advance(context.Context, string, pglock.Token) (pglock.Token, error) {
	return 0, errors.New("the store is down")
}

func TestEachRefusalIsObserved(t *testing.T) {
	t.Parallel()
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "the request's")
	store := &fencedhttp.MemoryStore{}
	must.Get(store.Advance(t.Context(), "/r", 35))(t)
	for what, c := range map[string]struct {
		change func(*fencedhttp.Verifier)
		values []string
		want   pglock.Event // without At and Err; no kind: there is none
		status int
		says   string
	}{
		"admitted": {nil, []string{"35"}, pglock.Event{}, 200, ""},
		"stale": {nil, []string{"33"}, pglock.Event{Kind: pglock.EventStale, Resource: "/r", Token: 33,
			LastToken: 35}, 409, "stale fencing token 33"},
		"no token":  {nil, nil, pglock.Event{Kind: pglock.EventRefused}, 428, "no fencing token"},
		"malformed": {nil, []string{"x"}, pglock.Event{Kind: pglock.EventRefused}, 400, "decimal number"},
		"unnamed": {func(v *fencedhttp.Verifier) {
			v.Resource = func(*http.Request) (string, error) { return "", nil }
		}, []string{"36"}, pglock.Event{Kind: pglock.EventRefused, Token: 36}, 400, "resource"},
		"unavailable": {func(v *fencedhttp.Verifier) {
			v.Store = broken{}
		}, []string{"36"}, pglock.Event{Kind: pglock.EventRefused, Resource: "/r", Token: 36}, 503,
			"the store is down"},
		"not configured": {func(v *fencedhttp.Verifier) {
			v.Store = nil
		}, []string{"36"}, pglock.Event{Kind: pglock.EventRefused}, 500, "Verifier.Store"},
		"stale when serial": {func(v *fencedhttp.Verifier) {
			v.Serialize = true
		}, []string{"33"}, pglock.Event{Kind: pglock.EventStale, Resource: "/r", Token: 33, LastToken: 35}, 409,
			"stale fencing token 33"},
	} {
		v := byPath(store)
		var events []pglock.Event
		v.Observer = pglock.ObserverFunc(func(ctx context.Context, e pglock.Event) {
			events = append(events, e)
			if ctx.Value(key{}) != "the request's" || ctx.Done() != nil {
				t.Errorf("%s: the event's context has the value %v, or ends", what, ctx.Value(key{}))
			}
		})
		if c.change != nil {
			c.change(v)
		}
		if w := ask(ctx, v.Middleware(echo), "/r", c.values...); w.Code != c.status {
			t.Errorf("%s: status %d, want %d", what, w.Code, c.status)
		}
		if c.want.Kind == "" {
			if len(events) > 0 {
				t.Errorf("%s: events %+v", what, events)
			}
			continue
		}
		if len(events) != 1 {
			t.Fatalf("%s: events %+v", what, events)
		}
		e := events[0]
		if time.Since(e.At) > time.Minute || e.Err == nil || !strings.Contains(e.Err.Error(), c.says) {
			t.Errorf("%s: event %+v", what, e)
		}
		if e.At, e.Err = (time.Time{}), nil; e != c.want {
			t.Errorf("%s: event %+v, want %+v", what, e, c.want)
		}
	}
}

func TestRefusalOfARequestThatWaitedTooLongIsObserved(t *testing.T) {
	t.Parallel()
	v := byPath(&fencedhttp.MemoryStore{})
	v.Serialize = true
	var events []pglock.Event
	v.Observer = pglock.ObserverFunc(func(_ context.Context, e pglock.Event) { events = append(events, e) })
	entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h := v.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(entered); <-leave }))
	go func() { defer close(left); ask(context.WithoutCancel(t.Context()), h, "/r", "1") }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w := ask(ctx, h, "/r", "2"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.Code)
	}
	close(leave)
	<-left
	if len(events) != 1 || events[0].Kind != pglock.EventRefused || !errors.Is(events[0].Err, context.Canceled) ||
		events[0].Token != 2 {
		t.Errorf("events %+v", events)
	}
}

func TestPanicOfAnObserverIsReportedAndTheAnswerStands(t *testing.T) {
	t.Parallel()
	v := byPath(&fencedhttp.MemoryStore{})
	v.Observer = pglock.ObserverFunc(func(context.Context, pglock.Event) { panic("no") })
	var reported error
	v.OnError = func(_ *http.Request, err error) { reported = err }
	if w := ask(t.Context(), v.Middleware(echo), "/r"); w.Code != http.StatusPreconditionRequired {
		t.Errorf("status %d", w.Code)
	}
	if reported == nil || !strings.Contains(reported.Error(), "observer panicked") {
		t.Errorf("reported %v", reported)
	}
}
