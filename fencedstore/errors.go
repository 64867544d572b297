package fencedstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/pglock"
)

// Refusals, for errors.Is. Others come from package pglock: ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase,
// ErrPermission, ErrReadOnly, ErrOutcomeUnknown.
var (
	// ErrStaleToken: a greater token has written to the resource, or, without AllowSameToken, this very one.
	// errors.As with **StaleTokenError tells which.
	ErrStaleToken = errors.New("fencedstore: stale fencing token")
	// ErrLeftFence: the transaction was left inside the write, by a COMMIT, a ROLLBACK, or a ROLLBACK TO a savepoint
	// from before the fence. What it wrote after leaving was not protected.
	ErrLeftFence = errors.New("fencedstore: transaction has left the fence")
)

// StaleTokenError says which token was refused, and which one stands at the fence. It is an ErrStaleToken.
type StaleTokenError struct {
	Resource  string
	Token     pglock.Token
	LastToken pglock.Token
}

func (e *StaleTokenError) Error() string {
	if e.Token == e.LastToken {
		return fmt.Sprintf("fencedstore: token %d has already written to resource %q: one grant writes once, unless AllowSameToken is given",
			e.Token, e.Resource)
	}
	return fmt.Sprintf("fencedstore: stale fencing token %d: token %d has written to resource %q", e.Token, e.LastToken, e.Resource)
}

// Is reports whether target is ErrStaleToken.
func (e *StaleTokenError) Is(target error) bool { return target == ErrStaleToken }

// OutcomeUnknownError says that the connection ended at COMMIT and that the server could not say what became of the
// transaction, or that the server committed but did not wait for its standby. It is a pglock.ErrOutcomeUnknown. Ask
// again with Store.Outcome.
type OutcomeUnknownError struct {
	Receipt Receipt
	Err     error
}

func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("fencedstore: outcome of write %s unknown: %v", e.Receipt.Write, e.Err)
}

// Is reports whether target is pglock.ErrOutcomeUnknown.
func (e *OutcomeUnknownError) Is(target error) bool { return target == pglock.ErrOutcomeUnknown }

func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// translated are what translate makes of the server's errors and keeps them in: once is enough.
var translated = []error{ErrLeftFence, ErrUnfenced, ErrKeyTooOld, pglock.ErrPermission, pglock.ErrReadOnly, pglock.ErrSchema, pglock.ErrInvalid}

// translate turns the server's refusals into the errors of this package and of pglock.
func translate(err error, lease *pglock.Lease, resource string) error {
	if slices.ContainsFunc(translated, func(target error) bool { return errors.Is(err, target) }) {
		return err
	}
	switch state(err) {
	case "LK002":
		last, _ := strconv.ParseInt(strings.TrimPrefix(field(err, 'D'), "last_token="), 10, 64)
		return &StaleTokenError{Resource: resource, Token: lease.Token(), LastToken: pglock.Token(last)}
	case "LK011":
		return &UnfencedError{Table: field(err, 's') + "." + field(err, 't'), Resource: strings.TrimPrefix(field(err, 'D'), "resource="), Err: err}
	case "LK012":
		return fmt.Errorf("%w: %w", ErrKeyTooOld, err)
	case "LK009":
		return fmt.Errorf("%w: %w", ErrLeftFence, err)
	}
	return pglock.ErrorFromSQL(err, lease.Name(), lease.Token())
}

// state is the SQLSTATE of a server's error, or "".
func state(err error) string {
	var e interface{ SQLState() string }
	if !errors.As(err, &e) {
		return ""
	}
	return e.SQLState()
}

// field reads a field of a server's error, from pgx or from lib/pq: 'D' is DETAIL, 's', 't', 'c' and 'n' are
// schema, table, column and constraint.
func field(err error, name byte) string {
	var pgErr *pgconn.PgError
	var legacy interface{ Get(byte) string }
	switch {
	case errors.As(err, &pgErr):
		switch name {
		case 'D':
			return pgErr.Detail
		case 's':
			return pgErr.SchemaName
		case 't':
			return pgErr.TableName
		case 'c':
			return pgErr.ColumnName
		case 'n':
			return pgErr.ConstraintName
		}
	case errors.As(err, &legacy):
		return legacy.Get(name)
	}
	return ""
}
