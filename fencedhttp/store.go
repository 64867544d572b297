package fencedhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// TokenStore remembers the greatest token of each resource.
type TokenStore interface {
	// Advance remembers the token unless it already remembers a greater one, and returns the greatest, in one atomic
	// step: the token has passed if and only if last == token. It returns only when its answer cannot be forgotten
	// any more. After an error it may or may not remember the token.
	Advance(ctx context.Context, resource string, token pglock.Token) (last pglock.Token, err error)
}

// DefaultMaxResources is how many resources a MemoryStore remembers by default.
const DefaultMaxResources = 1 << 16

// ErrFull: a MemoryStore has no room for another resource.
var ErrFull = errors.New("fencedhttp: memory store is full")

// MemoryStore is a TokenStore in the memory of one process. It forgets everything when the process ends: after a
// restart a stale token passes until the first request with a greater one. Use it in tests, or where the resource
// ends with the process too. The zero value is ready; do not copy it. It is safe for concurrent use.
type MemoryStore struct {
	// MaxResources limits how many resources are remembered. A further one is refused with ErrFull: a fence that
	// forgot a resource would let stale tokens in. Defaults to DefaultMaxResources, 65,536; set it before use.
	MaxResources int

	mu   sync.Mutex
	last map[string]pglock.Token
}

// Advance implements TokenStore. Errors: ErrFull, pglock.ErrInvalid.
func (s *MemoryStore) Advance(_ context.Context, resource string, token pglock.Token) (pglock.Token, error) {
	if err := checkAdvance(resource, token); err != nil {
		return 0, err
	}
	most := s.MaxResources
	if most <= 0 {
		most = DefaultMaxResources
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.last[resource]
	switch {
	case !known && len(s.last) >= most:
		return 0, fmt.Errorf("%w: it has %d resources", ErrFull, len(s.last))
	case token <= last:
		return last, nil
	case s.last == nil:
		s.last = map[string]pglock.Token{}
	}
	s.last[resource] = token
	return token, nil
}

func checkAdvance(resource string, token pglock.Token) error {
	return cmp.Or(refuse.If(token <= 0, "token", fmt.Sprint(token), "be positive"),
		refuse.Text("resource", resource, pglock.MaxNameBytes))
}
