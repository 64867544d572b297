//go:build unix

package load

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// sentinels are the errors that are counted by a name of their own, the more telling ones first.
var sentinels = []struct {
	err  error
	name string
}{
	{pglock.ErrOutcomeUnknown, "unknown"},
	{fencedstore.ErrStaleToken, "stale token"},
	{fencedstore.ErrDone, "already done"},
	{fencedstore.ErrUnfenced, "unfenced"},
	{fencedstore.ErrLeftFence, "left the fence"},
	{pglock.ErrNoWaiter, "nobody waits"},
	{pglock.ErrSelfDeadlock, "self-deadlock"},
	{pglock.ErrDeadlock, "circle"},
	{pglock.ErrWrongDatabase, "wrong database"},
	{pglock.ErrInvalid, "invalid"},
	{pglock.ErrSchema, "schema"},
	{pglock.ErrPermission, "permission"},
	{pglock.ErrReadOnly, "read-only"},
	{pglock.ErrLost, "lost"},
	{pglock.ErrReleased, "released"},
	{context.Canceled, "cancelled"},
	{context.DeadlineExceeded, "deadline"},
	{pglock.ErrHeld, "held"},
	{pglock.ErrClosed, "closed"},
	{errChanged, "own retreat"},
}

// classify names an error for tables and for what may be expected; "" is success.
func classify(err error) string {
	if err == nil {
		return ""
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) &&
		(pgErr.Code == "40P01" || slices.Contains([]string{"22", "23", "42", "XX"}, pgErr.Code[:2])) {
		return pgErr.Code // never to be hidden by a milder name
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.name
		}
	}
	if pgErr != nil {
		if pgErr.Code == "25P03" || pgErr.Code == "25P04" {
			return "time limit"
		}
		return pgErr.Code
	}
	var netErr net.Error
	var connectErr *pgconn.ConnectError
	if errors.As(err, &netErr) || errors.As(err, &connectErr) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, pgx.ErrTxClosed) ||
		strings.Contains(err.Error(), "conn closed") || pgconn.SafeToRetry(err) {
		return "connection"
	}
	return "other"
}
