package fencedhttp

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/pglock"
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
		return t.base().RoundTrip(r)
	}
	header, err := c.header(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header = header
	return t.base().RoundTrip(r)
}

// header returns the request's header with the token in it.
func (c carried) header(r *http.Request) (http.Header, error) {
	if c.err != nil {
		return nil, fmt.Errorf("fencedhttp: send %s: %w", r.Method, c.err)
	}
	if c.lease != nil {
		if err := c.lease.Err(); err != nil {
			return nil, fmt.Errorf("fencedhttp: not sent: %w", err)
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
				return nil, fmt.Errorf("fencedhttp: send %s: %w", r.Method, &pglock.ArgumentError{Field: "header " + Header, Value: shorten(v),
					Rule: "not be set, or be " + token + " as the context says"})
			}
		}
		delete(header, name)
	}
	header[Header] = []string{token}
	return header, nil
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// CloseIdleConnections closes those of Base, for http.Client.CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if b, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		b.CloseIdleConnections()
	}
}

func shorten(s string) string {
	if len(s) > maxHeaderBytes {
		return strconv.Quote(s[:maxHeaderBytes]) + "…"
	}
	return strconv.Quote(s)
}
