// Package reversible does operations outside the database, on files, objects and services, between two checks of a
// lease, and undoes them when the second check fails.
package reversible

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// DefaultRestoreTimeout bounds Operation.Restore unless RestoreTimeout says otherwise.
const DefaultRestoreTimeout = 30 * time.Second

const (
	// checking bounds one attempt to ask for the lease after Apply, besides a third of the TTL.
	checking = 10 * time.Second
	// firstPause and longestPause lie between two attempts.
	firstPause   = 20 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

// What became of an operation that Run does not let stand, for errors.Is. An error that is none of these says that
// Apply was not called.
var (
	// ErrUndone: Apply was called, and Restore has undone it.
	ErrUndone = errors.New("reversible: operation was undone")
	// ErrNotRestored: Apply was called, and Restore failed. errors.As with **RestoreError tells how.
	ErrNotRestored = errors.New("reversible: operation was not undone")
	// ErrOvertaken: Restore returns it, wrapped or not, if somebody else has written since Apply, so that nothing is
	// left to undo. Run returns it together with the reason for undoing.
	ErrOvertaken = errors.New("reversible: somebody has written since: not undone")
	// ErrUnconfirmed is a reason for undoing: the server could not be asked in time whether the lease was still held.
	ErrUnconfirmed = errors.New("reversible: the server did not confirm the lease")
)

// RestoreError says that an operation had to be undone, and that Restore failed: its resource may be left with what
// Apply did, or with a part of it. It is an ErrNotRestored, and unwraps to both errors.
type RestoreError struct {
	Resource string
	Token    pglock.Token
	Cause    error // why the operation had to be undone: Apply's error, the loss of the lease, or the end of ctx
	Err      error // Restore's
}

func (e *RestoreError) Error() string {
	return fmt.Sprintf("reversible: operation of token %d on resource %q was not undone: %s; "+
		"it had to be undone, because: %s",
		e.Token, e.Resource, failure.Bare(e.Err), failure.Bare(e.Cause))
}

// Is reports whether target is ErrNotRestored.
func (e *RestoreError) Is(target error) bool { return target == ErrNotRestored }

func (e *RestoreError) Unwrap() []error { return []error{e.Cause, e.Err} }

// Operation is an operation outside the database, on a file, an object or a service, that can be undone. Its functions
// share their state as closures; Run calls each at most once, in the goroutine of its caller.
//
// Restore is dangerous. It runs when the lease has ended, so the next holder may have written already, or may write at
// this very moment: a Restore that puts back blindly what Capture saw destroys the next holder's work. So:
//
//   - Restore must be conditional. It undoes only what is still as Apply left it, and compares and undoes in one step:
//     an object by If-Match, a file under a lock that all its writers take, a service by the token
//     (fencedhttp.ContextWithToken, because the lease has ended). Otherwise it changes nothing and returns
//     ErrOvertaken.
//   - What Apply leaves must differ from what any other writer leaves, so include the token or a version. Otherwise
//     Restore mistakes equal contents for its own.
//   - Apply should be conditional too: it replaces what Capture saw, and fails otherwise. Otherwise a holder may build
//     on what a predecessor is just undoing.
//   - Apply must be over when it returns. Nobody can undo a request that was given up and may still arrive.
//   - Run also calls Restore after a failed Apply. So Restore must work if Apply has done nothing, or only a part.
type Operation struct {
	// Resource names what the operation changes, in 1 to 512 bytes, as fencedstore.Fence does. Defaults to
	// Lease.Resource.
	Resource string
	// Capture remembers the state before, for Apply and Restore. Nil: there is nothing to remember.
	Capture func(ctx context.Context) error
	// Apply does the operation. Required.
	Apply func(ctx context.Context) error
	// Restore undoes it, on its condition. Required. Its context has the values of Run's, but ends neither with it nor
	// with the lease: only with RestoreTimeout. Run waits for it to return.
	Restore func(ctx context.Context) error
	// RestoreTimeout bounds Restore. Defaults to DefaultRestoreTimeout, 30 s.
	RestoreTimeout time.Duration
}

func (op Operation) check(lease *pglock.Lease) error {
	return cmp.Or(refuse.Lease(lease), refuse.If(op.Apply == nil, "Apply", "nil", "be a function"),
		refuse.If(op.Restore == nil, "Restore", "nil", "be a function"),
		refuse.If(op.RestoreTimeout < 0, "RestoreTimeout", op.RestoreTimeout.String(), "not be negative"))
}

// Run does an operation outside the database between two checks of the lease by the server, and undoes it when the
// second one fails:
//
//  1. Run passes the fence of the resource, in a short transaction through the pool of the lease's client. From now on
//     the fence refuses a holder with a lower token; if a greater token has passed, it refuses this one. The same token
//     may pass again: one grant can run many operations. A later write under the same token needs Fence.SameToken.
//  2. Run calls Capture, and checks the local deadline of the lease.
//  3. Run calls Apply.
//  4. Run asks the server whether the lease is still held. If it is, the lease was held while Apply ran, and the
//     operation stands. If it is not, Run calls Restore. If the server does not answer, Run asks again until the local
//     deadline that the lease had when Apply returned, which comes before its end on the server. Then it calls Restore.
//
// The contexts of Capture and Apply end with ctx and with the lease. Run also calls Restore if Apply returns an error
// or panics, or if ctx ends before the server has answered; after Restore the panic goes on.
//
// This is weaker than fencedstore.Store.Write. The database refuses a late write, but others can see an operation
// outside until Restore has undone it, and a process that dies in between undoes nothing. If the receiver can compare
// tokens by itself, as with package fencedhttp, let it do so. Operation says what Restore must heed.
//
// A nil return means that the operation stands. An error that matches ErrUndone, ErrNotRestored (RestoreError) or
// ErrOvertaken says what became of an operation that was begun. It also has the reason: Apply's error, pglock.ErrLost,
// pglock.ErrReleased or ErrUnconfirmed, or the cause of ctx's end. Any other means that Apply was not called: Capture's
// error, fencedstore.ErrStaleToken or ErrTimeLimit, pglock.ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase,
// ErrPermission, ErrOutcomeUnknown (of the fence; it is safe to run again).
func Run(ctx context.Context, lease *pglock.Lease, op Operation) error {
	if err := op.check(lease); err != nil {
		return err
	}
	op.Resource = cmp.Or(op.Resource, lease.Resource())
	store := fencedstore.New(hooks.Of(lease).Pool()).With(
		fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}))
	err := store.Write(ctx, fencedstore.Fence{Lease: lease, Resource: op.Resource, SameToken: true},
		func(context.Context, pgx.Tx) error { return nil })
	if err != nil {
		return failure.At(ctx, err, "reversible: operation was not begun")
	}
	working, stop := withLease(ctx, lease)
	defer stop()
	if op.Capture != nil {
		err = withLoss(op.Capture(working), lease)
	}
	if err == nil {
		err = ended(working, lease)
	}
	if err != nil {
		return failure.At(ctx, err, "reversible: operation on resource %q was not begun", op.Resource)
	}
	return op.run(ctx, working, lease)
}

// withLease is a context that ends with ctx and with the lease.
func withLease(ctx context.Context, lease *pglock.Lease) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	life := hooks.Of(lease).Life()
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// ended is why the work must not go on, or nil.
func ended(ctx context.Context, lease *pglock.Lease) error {
	if err := lease.Err(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// withLoss is a function's own error, with the loss of the lease beside it when that is the likely reason.
func withLoss(err error, lease *pglock.Lease) error {
	if lost := lease.Err(); err != nil && lost != nil && !errors.Is(err, lost) {
		return errors.Join(err, lost)
	}
	return err
}

// run applies an operation that is under the fence, and undoes it unless it stands, also when Apply panics or ends its
// goroutine.
func (op Operation) run(ctx, working context.Context, lease *pglock.Lease) error {
	returned := false
	defer func() {
		if !returned {
			// Nobody takes the error: the panic goes on.
			_ = op.undo(ctx, lease, errors.New("the function Apply did not return"))
		}
	}()
	err := op.Apply(working)
	returned = true
	if err != nil {
		return op.undo(ctx, lease, withLoss(err, lease))
	}
	if err := confirm(working, lease); err != nil {
		return op.undo(ctx, lease, err)
	}
	return nil
}

// confirm asks the server whether the lease is held until it answers, or until the local deadline that the lease has
// now: the heartbeat may move that, and an operation that may have to be undone does not wait for it. Nil means that
// the lease was held after the call began.
func confirm(ctx context.Context, lease *pglock.Lease) error {
	by := lease.Deadline()
	last := errors.New("no time was left to ask it")
	for wait := firstPause; time.Until(by) > 0; wait = min(2*wait, longestPause) {
		// An attempt that hangs in silence leaves time for another one, and none goes on past the deadline.
		attempt, cancel := context.WithTimeout(ctx, min(lease.TTL()/3, checking, time.Until(by)))
		_, err := lease.Check(attempt)
		cancel()
		if err == nil || errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrReleased) {
			return err
		}
		if last = failure.OfOurs(err); ended(ctx, lease) != nil {
			break
		}
		pause.Exactly(ctx, min(wait, time.Until(by)))
	}
	if end := ended(ctx, lease); end != nil {
		return fmt.Errorf("%w; until then the server did not say whether the lease is held: %w", end, last)
	}
	return fmt.Errorf("%w: it did not say so by the deadline that the lease had when Apply returned: %w",
		ErrUnconfirmed, last)
}

// undo restores, and returns what to tell the caller: never nil. Neither ctx nor the lease ends it.
func (op Operation) undo(ctx context.Context, lease *pglock.Lease, cause error) error {
	limit := cmp.Or(op.RestoreTimeout, DefaultRestoreTimeout)
	restoring, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	err := op.Restore(restoring)
	switch {
	case err == nil:
		err = fmt.Errorf("%w, because: %w", ErrUndone, cause)
		return failure.At(ctx, err, "reversible: token %d on resource %q", lease.Token(), op.Resource)
	case errors.Is(err, ErrOvertaken):
		err = fmt.Errorf("%w; it had to be undone, because: %w", err, cause)
		return failure.At(ctx, err, "reversible: operation of token %d on resource %q", lease.Token(), op.Resource)
	}
	cause = failure.OfContext(ctx, cause)
	return &RestoreError{Resource: op.Resource, Token: lease.Token(), Cause: cause, Err: err}
}
