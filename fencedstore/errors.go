package fencedstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// Refusals, for errors.Is. Others come from package pglock: ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase,
// ErrPermission, ErrReadOnly, ErrOutcomeUnknown.
var (
	// ErrStaleToken: a greater token has written to the resource, or, without WithSameToken, this very one.
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
		return fmt.Sprintf("fencedstore: token %d has already written to resource %q: one grant writes once, unless WithSameToken is given",
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
	switch protocol.State(err) {
	case protocol.StateStaleToken:
		last, _ := strconv.ParseInt(protocol.Detail(err, "last_token"), 10, 64)
		return &StaleTokenError{Resource: resource, Token: lease.Token(), LastToken: pglock.Token(last)}
	case protocol.StateUnfenced:
		return &UnfencedError{Table: protocol.Field(err, protocol.FieldSchema) + "." + protocol.Field(err, protocol.FieldTable), Resource: protocol.Detail(err, "resource"), Err: err}
	case protocol.StateKeyTooOld:
		return fmt.Errorf("%w: %w", ErrKeyTooOld, err)
	case protocol.StateLeftFence:
		return fmt.Errorf("%w: %w", ErrLeftFence, err)
	}
	return hooks.ErrorFromSQL(err, lease.Name(), int64(lease.Token()))
}

// checkText refuses a text that is empty, longer than most bytes, no UTF-8, or that PostgreSQL cannot store.
func checkText(name, value string, most int) error {
	if p := argument.Text(name, value, most); p != nil {
		return (*pglock.ArgumentError)(p)
	}
	return nil
}
