package fencedhttp

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/refuse"
)

// Transport is an http.RoundTripper that puts the token of a request's context into its header (ContextWithLease,
// ContextWithToken). It sends a request unchanged if the context carries none. It is safe for concurrent use if Base
// is.
//
// It does not send a request whose lease has ended (pglock.ErrLost or pglock.ErrReleased), nor one whose header
// already has another value (pglock.ErrInvalid). Both errors come wrapped in the *url.Error of http.Client. A lease
// that has not ended here may have ended on the server, so the receiver still has to compare.
//
// It does not change the caller's request, and does not look at responses: see Refusal.
type Transport struct {
	// Base sends the requests. Defaults to http.DefaultTransport.
	Base http.RoundTripper
}

// RoundTrip implements http.RoundTripper. Redirects come here too, each as a separate request.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	c, ok := r.Context().Value(contextKey{}).(carried)
	if !ok {
		return t.send(r)
	}
	header, err := c.header(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, failure.Told(err, "fencedhttp: send %s", r.Method)
	}
	r = r.Clone(r.Context())
	r.Header = header
	return t.send(r)
}

// send returns Base's error as it is, unless there is a reason for the end of the context to add.
func (t *Transport) send(r *http.Request) (*http.Response, error) {
	response, err := t.base().RoundTrip(r)
	if ctx := r.Context(); err != nil && ctx.Err() != nil && context.Cause(ctx) != ctx.Err() {
		err = failure.At(ctx, err, "fencedhttp: send %s", r.Method)
	}
	return response, err
}

// header returns the request's header with the token in it.
func (c carried) header(r *http.Request) (http.Header, error) {
	if c.err != nil {
		return nil, c.err
	}
	if c.lease != nil {
		if err := c.lease.Err(); err != nil {
			return nil, err
		}
	}
	token := strconv.FormatInt(int64(c.token), 10)
	header := r.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	for name, values := range header {
		if !strings.EqualFold(name, Header) { // the map may hold any spelling
			continue
		}
		for _, v := range values {
			if v != token {
				return nil, refuse.Invalid("header "+Header, argument.Shorten(v),
					"not be set, or be "+token+" as the context says")
			}
		}
		delete(header, name)
	}
	header[Header] = []string{token}
	return header, nil
}

func (t *Transport) base() http.RoundTripper { return cmp.Or(t.Base, http.DefaultTransport) }

// CloseIdleConnections closes those of Base, for http.Client.CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if b, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		b.CloseIdleConnections()
	}
}
