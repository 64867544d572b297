package fencedhttp

import (
	"context"
	"fmt"
	"strconv"

	"github.com/pglock-dev/pglock/pglock"
)

// Header is the name of the header that carries the token.
const Header = "Fencing-Token"

const (
	// maxDigits is how many the greatest token has, 9223372036854775807.
	maxDigits = 19
	// maxHeaderBytes is how much of a bad header is shown.
	maxHeaderBytes = 64
)

// carried is what a context says about the token.
type carried struct {
	token pglock.Token
	lease *pglock.Lease // nil: the token alone
	err   error         // why it cannot be sent
}

type contextKey struct{}

// ContextWithLease makes requests under the context carry the lease's token, and makes Transport refuse them once the lease has
// ended. It does not end the context with the lease: give it lease.Context(), or what was made of it, so that a request
// under way ends too. A nil or zero lease makes Transport refuse with pglock.ErrInvalid.
func ContextWithLease(ctx context.Context, lease *pglock.Lease) context.Context {
	c := carried{lease: lease}
	if lease == nil || lease.Token() == 0 {
		c = carried{err: &pglock.ArgumentError{Field: "lease", Value: "nil or zero",
			Rule: "be a *pglock.Lease that a Client was granted"}}
	} else {
		c.token = lease.Token()
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// ContextWithToken makes requests under the context carry the token, whatever has become of its lease: to undo what was done
// under it (the service refuses if somebody has come since), or in a process that was only told the token. It replaces what
// ContextWithLease or ContextWithToken has said before. A token that is not positive makes Transport refuse with pglock.ErrInvalid.
func ContextWithToken(ctx context.Context, token pglock.Token) context.Context {
	c := carried{token: token}
	if token <= 0 {
		c = carried{err: &pglock.ArgumentError{Field: "token", Value: fmt.Sprint(token), Rule: "be positive"}}
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// TokenFromContext is the token that the context carries: in a handler behind a Verifier the one that has passed.
func TokenFromContext(ctx context.Context) (pglock.Token, bool) {
	c, _ := ctx.Value(contextKey{}).(carried)
	return c.token, c.token > 0
}

// parseToken reads the values of the header; there is at least one.
func parseToken(values []string) (pglock.Token, error) {
	if len(values) != 1 {
		return 0, fmt.Errorf("the header %s occurs %d times: it must occur once", Header, len(values))
	}
	text := values[0]
	if len(text) > maxHeaderBytes {
		return 0, fmt.Errorf("the header %s has %d bytes: it must have 1 to %d digits", Header, len(text), maxDigits)
	}
	bad := fmt.Errorf("the header %s is %q: it must be a decimal number from 1 to 9223372036854775807, "+
		"without sign, spaces or leading zeros", Header, text)
	if len(text) == 0 || len(text) > maxDigits || text[0] == '0' {
		return 0, bad
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, bad
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil { // 19 digits can be too much
		return 0, bad
	}
	return pglock.Token(n), nil
}
