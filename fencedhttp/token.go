package fencedhttp

import (
	"context"
	"fmt"
	"strconv"

	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Header is the name of the header that carries the token.
const Header = "Fencing-Token"

const (
	// maxDigits is the length of the greatest token, 9223372036854775807.
	maxDigits = 19
	// maxHeaderBytes limits how much of a bad header an error shows.
	maxHeaderBytes = 64
)

// carried is what a context says about the token.
type carried struct {
	token pglock.Token
	lease *pglock.Lease // nil: only a token
	err   error         // why it cannot be sent
}

type contextKey struct{}

// ContextWithLease makes requests under the context carry the lease's token, and makes Transport refuse them once the
// lease has ended. It does not end the context with the lease: pass lease.Context(), or a context derived from it, so
// that a request under way ends too. With a nil or zero lease Transport refuses with pglock.ErrInvalid.
func ContextWithLease(ctx context.Context, lease *pglock.Lease) context.Context {
	c := carried{lease: lease, err: refuse.Lease(lease)}
	if c.err == nil {
		c.token = lease.Token()
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// ContextWithToken makes requests under the context carry the token, whatever has become of its lease. Use it to undo
// what was done under the lease (the service refuses if a later holder has come), or in a process that has only the
// token. It replaces an earlier ContextWithLease or ContextWithToken. With a token that is not positive Transport
// refuses with pglock.ErrInvalid.
func ContextWithToken(ctx context.Context, token pglock.Token) context.Context {
	c := carried{token: token}
	if token <= 0 {
		c = carried{err: refuse.Invalid("token", fmt.Sprint(token), "be positive")}
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// TokenFromContext returns the token that the context carries. In a handler behind a Verifier it is the admitted
// token.
func TokenFromContext(ctx context.Context) (pglock.Token, bool) {
	c, _ := ctx.Value(contextKey{}).(carried)
	return c.token, c.token > 0
}

// parseToken reads the header's values; there is at least one.
func parseToken(values []string) (pglock.Token, error) {
	if len(values) != 1 {
		return 0, fmt.Errorf("the header %s occurs %d times: it must occur once", Header, len(values))
	}
	text := values[0]
	if len(text) > maxHeaderBytes {
		return 0, fmt.Errorf("the header %s has %d bytes: it must have 1 to %d digits", Header, len(text), maxDigits)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != text {
		return 0, fmt.Errorf("the header %s is %q: it must be a decimal number from 1 to 9223372036854775807, "+
			"without sign, spaces or leading zeros", Header, text)
	}
	return pglock.Token(n), nil
}
