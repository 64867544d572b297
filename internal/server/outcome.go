package server

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// NeverSent reports whether the request did not reach a server at all.
func NeverSent(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, unsent := errors.AsType[*coalesce.NotSentError](err)
	return connecting || unsent
}

// AnswerLost reports that a request was sent and may have been carried out, but its answer will never come.
func AnswerLost(err error) bool {
	_, left := errors.AsType[*coalesce.LeftError](err)
	return protocol.ConnectionLost(err) && !NeverSent(err) && !left
}

// Lasting reports whether the error would come again and again: the pool is closed, or the server refuses the request
// or the login for a reason that will not pass. A lack of resources (class 53) may pass, and a standby may be promoted.
func Lasting(err error) bool {
	state := protocol.State(err)
	return errors.Is(err, puddle.ErrClosedPool) ||
		state != "" && !protocol.ReadOnly(err) && !protocol.Transient(err) && !protocol.ConnectionLost(err) &&
			!strings.HasPrefix(state, "53")
}
