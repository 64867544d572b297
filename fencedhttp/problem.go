package fencedhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	"github.com/pglock-dev/pglock/pglock"
)

// ContentType is that of problem documents.
const ContentType = "application/problem+json"

// The types of the problem documents. They are names; nothing is served there.
const (
	typeBase = "https://github.com/pglock-dev/pglock/problems/"

	TypeStaleToken    = typeBase + "stale-fencing-token"      // 409
	TypeNoToken       = typeBase + "fencing-token-required"   // 428
	TypeBadToken      = typeBase + "malformed-fencing-token"  // 400
	TypeBadResource   = typeBase + "unknown-fenced-resource"  // 400
	TypeNoStore       = typeBase + "fencing-unavailable"      // 503
	TypeWaiting       = typeBase + "predecessor-still-active" // 503
	TypeMisconfigured = typeBase + "fencing-misconfigured"    // 500
)

// maxProblem limits how much of a response Refusal reads; a Verifier's document has at most a few kilobytes.
const maxProblem = 64 << 10

// ErrRefused: the service has seen a greater token for the resource. errors.As with **RefusedError says which tokens.
var ErrRefused = errors.New("fencedhttp: token was refused")

// RefusedError says which token a service refused, and the greatest that it had seen. It is an ErrRefused.
type RefusedError struct {
	Resource  string // the service's name for it
	Token     pglock.Token
	LastToken pglock.Token
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("fencedhttp: stale fencing token %d: resource %q has seen token %d", e.Token, e.Resource,
		e.LastToken)
}

// Is reports whether target is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// problem is a document of RFC 9457. Tokens are JSON numbers of up to 63 bits.
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Token     pglock.Token `json:"token,omitempty"`
	LastToken pglock.Token `json:"lastToken,omitempty"`
	Resource  string       `json:"resource,omitempty"`
}

func (p problem) write(w http.ResponseWriter) {
	body, _ := json.Marshal(p) // it has only strings and numbers
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that is gone does not read it
}

func stale(e *RefusedError) problem {
	return problem{Type: TypeStaleToken, Title: "Stale fencing token", Status: http.StatusConflict,
		Detail: fmt.Sprintf("Token %d is refused: token %d has been here. Stop the work that the lock protects; "+
			"acquire it again to go on.",
			e.Token, e.LastToken),
		Token: e.Token, LastToken: e.LastToken, Resource: e.Resource}
}

// Refusal returns a *RefusedError if the response is the 409 of a Verifier, and nil for every other response,
// including other refusals. It puts back what it reads of the body: you can read the response as if Refusal had not
// been called, and must still close its body.
func Refusal(resp *http.Response) error {
	if resp == nil || resp.StatusCode != http.StatusConflict || resp.Body == nil {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != ContentType {
		return nil
	}
	read, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failing{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), rest), resp.Body}
	var p problem
	if json.Unmarshal(read, &p) != nil || p.Type != TypeStaleToken {
		return nil
	}
	return &RefusedError{Resource: p.Resource, Token: p.Token, LastToken: p.LastToken}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
