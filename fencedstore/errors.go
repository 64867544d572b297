package fencedstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// Refusals, for errors.Is. Others come from package pglock: ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase,
// ErrPermission, ErrReadOnly, ErrOutcomeUnknown.
var (
	// ErrStaleToken: a greater token has written to the resource. Without SameToken also: this token has written.
	// errors.As with **StaleTokenError tells which.
	ErrStaleToken = errors.New("fencedstore: stale fencing token")
	// ErrLeftFence: the callback left the transaction, by COMMIT, by ROLLBACK, or by ROLLBACK TO a savepoint from
	// before the fence. What it wrote after that was not protected.
	ErrLeftFence = errors.New("fencedstore: transaction has left the fence")
)

// StaleTokenError says which token the fence refused, and which token passed it last. It is an ErrStaleToken.
type StaleTokenError struct {
	Resource  string
	Token     pglock.Token
	LastToken pglock.Token // 0 if the driver does not tell
}

func (e *StaleTokenError) Error() string {
	switch e.LastToken {
	case 0:
		return fmt.Sprintf("fencedstore: stale fencing token %d: it, or a greater token, has written to resource %q",
			e.Token, e.Resource)
	case e.Token:
		return fmt.Sprintf("fencedstore: token %d has already written to resource %q: "+
			"a grant writes once, unless its Fence has SameToken", e.Token, e.Resource)
	}
	return fmt.Sprintf("fencedstore: stale fencing token %d: token %d has written to resource %q",
		e.Token, e.LastToken, e.Resource)
}

// Is reports whether target is ErrStaleToken.
func (e *StaleTokenError) Is(target error) bool { return target == ErrStaleToken }

// OutcomeUnknownError says that the connection ended at COMMIT and the server did not say in time what became of the
// transaction, or that the server committed without waiting for its standby. It is a pglock.ErrOutcomeUnknown. Ask
// again with Store.Outcome. From Once it may also mean that the key is done, but not yet confirmed by disk or standby.
// Then call Once again: Outcome knows only this call's transaction, which was rolled back.
type OutcomeUnknownError struct {
	Receipt Receipt
	Err     error
}

func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("fencedstore: outcome of write %s unknown: %s", e.Receipt.Write, failure.Bare(e.Err))
}

// Is reports whether target is pglock.ErrOutcomeUnknown.
func (e *OutcomeUnknownError) Is(target error) bool { return target == pglock.ErrOutcomeUnknown }

func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// translated are the errors that explain wraps around the server's. An error that has one of them is left alone.
var translated = []error{ErrLeftFence, ErrUnfenced, ErrKeyTooOld,
	pglock.ErrPermission, pglock.ErrReadOnly, pglock.ErrSchema, pglock.ErrInvalid}

// explainOwn is explain for an error that may be of the application's own statements: what the server has refused them
// for is left as it is.
func (o opening) explainOwn(err error) error {
	if strings.HasPrefix(protocol.State(err), "LK") || protocol.NameLost(err) {
		return o.explain(err)
	}
	return err
}

// ofSeal is an error of the last check before COMMIT. The transaction passed its fence as a user who may: if it now
// lacks the right, it has taken a role.
func ofSeal(err error) error {
	if protocol.State(err) != "42501" {
		return err
	}
	return fmt.Errorf("%w: the transaction has taken a role without pglock_user: RESET ROLE at its end, or GRANT "+
		"pglock_user to that role: %w", pglock.ErrPermission, err)
}

// explain makes an error of this package or of pglock of what the server says about one of the fences.
func (o opening) explain(err error) error {
	if failure.IsOneOf(err, translated...) {
		return err
	}
	f, known := o.blamed(err)
	lease := f.Lease
	switch protocol.State(err) {
	case protocol.StateStaleToken:
		if !known {
			return fmt.Errorf("%w: %w", ErrStaleToken, err)
		}
		last, _ := strconv.ParseInt(protocol.Detail(err, "last_token"), 10, 64)
		return &StaleTokenError{Resource: f.Resource, Token: lease.Token(), LastToken: pglock.Token(last)}
	case protocol.StateExpired, protocol.StateNotHolder:
		if !known {
			return fmt.Errorf("%w: %w", pglock.ErrLost, err)
		}
	case protocol.StateUnfenced:
		table := protocol.Field(err, protocol.FieldSchema) + "." + protocol.Field(err, protocol.FieldTable)
		return &UnfencedError{Table: table, Resource: protocol.Detail(err, "resource"), Passed: o.resources(), Err: err,
			guard: protocol.Field(err, protocol.FieldConstraint), home: o.schema()}
	case protocol.StateKeyTooOld:
		return fmt.Errorf("%w: %w", ErrKeyTooOld, err)
	case protocol.StateLeftFence:
		return fmt.Errorf("%w: %w", ErrLeftFence, err)
	}
	err = pglock.ForSiblings(hooks.Key{}).ErrorFromSQL(err, lease.Name(), int64(lease.Token()))
	lost, found := errors.AsType[*pglock.LostError](err)
	if found && lost.Reason == pglock.ReasonReleased && lease.Err() == pglock.ErrReleased {
		return pglock.ErrReleased // by its own holder, while the write ran
	}
	return err
}
