package fencedhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Verifier compares the tokens of requests with the greatest one seen for their resource. Do not copy it, nor change
// it after the first request. It is safe for concurrent use.
//
// It decides by headers alone before it reads a body, so a client that expects 100-continue sends no body in vain.
type Verifier struct {
	// Store remembers the greatest tokens. Required.
	Store TokenStore
	// Resource names what a request changes: 1 to pglock.MaxNameBytes bytes of UTF-8 without NUL. Requests that
	// change the same thing must have the same name. An error is answered with 400, without its text. Required.
	Resource func(*http.Request) (string, error)
	// Unchecked lists the methods that pass without a check of their token. Defaults to GET, HEAD and OPTIONS; with
	// an empty slice that is not nil every request is checked.
	Unchecked []string
	// Serialize makes a request with a greater token wait until the handlers of requests with lower tokens have
	// returned, and refuses requests that a greater token has overtaken. So for one resource no two tokens are at
	// work at the same time, in this process and behind this Verifier. The wait ends with the request's context, with
	// 503. Over HTTP/1 that does not end when the client leaves, if the request has a body. So set a time limit around
	// the middleware, as http.TimeoutHandler(verifier.Middleware(h), …) does, and none inside it: that returns while h
	// is still at work. Requests with the same token run concurrently.
	Serialize bool
	// OnError receives what a response omits: errors of Store and Resource, and missing fields of this struct.
	// Optional.
	OnError func(*http.Request, error)
	// Observer is told of each request that is answered with an error: pglock.EventStale if a greater token was seen,
	// otherwise pglock.EventRefused. The request's goroutine calls it, after it has written the answer, so a slow one
	// makes refusals slow. If it panics, OnError receives that. Optional.
	Observer pglock.Observer

	gate gate
}

var defaultUnchecked = []string{http.MethodGet, http.MethodHead, http.MethodOptions}

// Middleware puts next behind the verifier. Several handlers behind one verifier share its resources.
func (v *Verifier) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { v.serve(w, r, next) })
}

func (v *Verifier) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if v.Store == nil || v.Resource == nil || next == nil {
		err := errors.New("fencedhttp: Verifier.Store, Verifier.Resource or the handler is nil: each must be set")
		v.fail(w, r, err, problem{Type: TypeMisconfigured, Title: "Fencing is not configured",
			Status: http.StatusInternalServerError})
		return
	}
	unchecked := v.Unchecked
	if unchecked == nil {
		unchecked = defaultUnchecked
	}
	if slices.Contains(unchecked, r.Method) {
		next.ServeHTTP(w, r)
		return
	}
	values := r.Header.Values(Header)
	if len(values) == 0 {
		v.refuse(w, r, errNoToken, problem{Type: TypeNoToken, Title: "Fencing token required",
			Status: http.StatusPreconditionRequired,
			Detail: fmt.Sprintf("Send the fencing token of your lease in the header %s.", Header)})
		return
	}
	token, err := parseToken(values)
	if err != nil {
		v.refuse(w, r, err, problem{Type: TypeBadToken, Title: "Malformed fencing token", Status: http.StatusBadRequest,
			Detail: err.Error()})
		return
	}
	resource, err := v.Resource(r)
	if err == nil {
		err = refuse.Text("resource", resource, pglock.MaxNameBytes)
	}
	if err != nil {
		err = failure.At(r.Context(), err, "fencedhttp: name the resource of %s", r.Method)
		v.fail(w, r, err, problem{Type: TypeBadResource, Title: "No fenced resource", Status: http.StatusBadRequest,
			Detail: "The request names no resource that can be fenced.", Token: token})
		return
	}
	v.admit(w, r, next, resource, token)
}

// admit runs the handler if no greater token was seen.
func (v *Verifier) admit(w http.ResponseWriter, r *http.Request, next http.Handler, resource string,
	token pglock.Token) {
	var turn *turn
	if v.Serialize {
		// Before the store is asked: so the gate still knows whoever passed the store in the meantime.
		turn = v.gate.pin(resource)
		defer v.gate.unpin(resource, turn)
	}
	last, err := v.Store.Advance(r.Context(), resource, token)
	if err == nil && last < token {
		err = fmt.Errorf("the store has %d for the greatest token", last)
	}
	if err != nil {
		err = failure.At(r.Context(), err, "fencedhttp: advance resource %q to token %d", resource, token)
		v.fail(w, r, err, problem{Type: TypeNoStore, Title: "Fencing unavailable",
			Status: http.StatusServiceUnavailable,
			Detail: "The token could not be compared. Nothing was done; try again.", Token: token, Resource: resource})
		return
	}
	if last == token && v.Serialize {
		last, err = v.gate.enter(r.Context(), turn, token)
		if err != nil {
			err = failure.At(r.Context(), err, "fencedhttp: token %d waits for its predecessors at resource %q", token,
				resource)
			v.fail(w, r, err, problem{Type: TypeWaiting, Title: "A predecessor is still at work",
				Status: http.StatusServiceUnavailable,
				Detail: "A request with a lower token has not finished in time. Nothing was done; try again.",
				Token:  token, Resource: resource})
			return
		}
		if last == token {
			defer v.gate.leave(turn)
		}
	}
	if last > token {
		err := &RefusedError{Resource: resource, Token: token, LastToken: last}
		v.refuse(w, r, err, stale(err))
		return
	}
	next.ServeHTTP(w, r.WithContext(ContextWithToken(r.Context(), token)))
}

var errNoToken = errors.New("fencedhttp: the request has no fencing token")

// fail is refuse for an error of the service, which the response omits.
func (v *Verifier) fail(w http.ResponseWriter, r *http.Request, err error, p problem) {
	v.report(r, err)
	v.refuse(w, r, err, p)
}

// refuse answers the request with the problem, and tells the observer.
func (v *Verifier) refuse(w http.ResponseWriter, r *http.Request, err error, p problem) {
	p.write(w)
	if v.Observer == nil {
		return
	}
	e := pglock.Event{Kind: pglock.EventRefused, At: time.Now(), Resource: p.Resource, Token: p.Token,
		LastToken: p.LastToken, Err: err}
	if p.Type == TypeStaleToken {
		e.Kind = pglock.EventStale
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			v.report(r, fmt.Errorf("fencedhttp: the observer panicked at the event %q: %v", e.Kind, panicked))
		}
	}()
	v.Observer.Observe(context.WithoutCancel(r.Context()), e)
}

func (v *Verifier) report(r *http.Request, err error) {
	if v.OnError != nil {
		v.OnError(r, err)
	}
}
