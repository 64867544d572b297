package advisory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Write runs fn in a transaction under the fence of the lease's resource, on the session that holds the advisory
// lock. So the advisory lock cannot be free while the transaction is open: whatever ends the session rolls back. Writes
// of one Held run one after the other, and fn must not call Write or Release of the same Held: with fn's context they
// return ErrInvalid at once and do nothing.
//
// fn's context ends with ctx and with the lease. If the session ends, only the next statement notices, because nobody
// else reads from the connection meanwhile. So do only what a rollback undoes, and nothing outside the database. Three
// things end the session, and with it the advisory lock: a context that ends while a statement runs, of fn or of Write
// itself, as while it waits at the fence, because pgx then closes the connection; a pause between two statements that
// is longer than the lease had left at the beginning; and a transaction that ends later than its time limit, because
// PostgreSQL may then end the next one of the session (from version 17 on). If ctx ends before Write has the session,
// nothing is sent and both locks stay.
//
// Write calls fencedstore.Guard, fn, Held.Guard and fencedstore.Guarded.Seal, and then sends COMMIT. An error or a
// panic of fn rolls back. Errors: those of these calls, ErrLost (LostError), and pglock.ErrOutcomeUnknown if COMMIT got
// no answer, was cancelled (SQLSTATE 57014) or did not wait for the synchronous standby, or if ctx or one of the locks
// ended before the answer. Write does not ask what became of it: Under with a receipt lets the caller.
func (h *Held) Write(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return h.Under(fencedstore.Fence{}).Write(ctx, fn)
}

// Writer writes as a Held does, under another fence or with options.
type Writer struct {
	h     *Held
	fence fencedstore.Fence
	opts  []fencedstore.Option
}

// Under makes a Writer for a fence of the Held's lease; leave Fence.Lease out. The options are those of
// fencedstore.Guard. With WithReceipt, ErrOutcomeUnknown is a fencedstore.OutcomeUnknownError, which has the receipt
// for fencedstore.Store.Outcome.
func (h *Held) Under(fence fencedstore.Fence, opts ...fencedstore.Option) Writer {
	return Writer{h, fence, opts}
}

// Write is Held.Write.
func (w Writer) Write(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	h := w.h
	switch {
	case fn == nil:
		return refuse.Nil("fn", "be a function")
	case w.fence.Lease != nil && w.fence.Lease != h.lease:
		return refuse.Invalid("fence", "of another lease", "leave its Lease out")
	}
	if err := h.refuseWithin(ctx); err != nil {
		return err
	}
	w.fence.Lease = h.lease
	giveBack, err := h.borrow(ctx)
	if err != nil {
		return failure.At(ctx, err, "advisory: write under lock %q", h.lease.Name())
	}
	defer giveBack()
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })()
	over := new(atomic.Bool)
	defer over.Store(true)
	guarded, err := w.write(context.WithValue(working, within{h}, over), fn)
	h.session.cut = h.session.conn.IsClosed() && errors.Is(err, context.Canceled) &&
		context.Cause(working) == pglock.ErrReleased
	if guarded != nil && guarded.ForSiblings(hooks.Key{}).Overran() && keepsLimits(h.session.conn) {
		closing, cancel := pause.Afterwards(ctx, goodbye)
		_ = h.session.conn.Close(closing) // the goroutine of h notices
		cancel()
	}
	if ended := h.Err(); err != nil && ended != nil &&
		!failure.IsOneOf(err, pglock.ErrLost, pglock.ErrOutcomeUnknown) {
		err = errors.Join(err, ended)
	}
	return failure.OfContext(ctx, err)
}

// within is where the context of a Write's fn has whether that Write is over.
type within struct{ h *Held }

// refuseWithin refuses what would wait for itself: a Write keeps the session until its fn returns.
func (h *Held) refuseWithin(ctx context.Context) error {
	over, is := ctx.Value(within{h}).(*atomic.Bool)
	return refuse.If(is && !over.Load(), "ctx", "that of a Write's fn",
		"not be that of a Write of the same Held, for whose end the call would wait")
}

// keepsLimits says of a server that it has transaction_timeout: hooks.Passage.Overran tells what comes of that.
func keepsLimits(conn *pgx.Conn) bool {
	major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	n, err := strconv.Atoi(major)
	return err != nil || n >= 17 // a version that we cannot read is a new one
}

func (w Writer) write(
	ctx context.Context, fn func(context.Context, pgx.Tx) error,
) (guarded *fencedstore.Guarded, err error) {
	h := w.h
	var tx pgx.Tx
	if err = ctx.Err(); err == nil { // else Begin would close the connection
		tx, err = h.session.conn.Begin(ctx)
	}
	if err != nil {
		return nil, failure.At(ctx, err, "advisory: write under lock %q", h.lease.Name())
	}
	defer func() { // does nothing after a commit. If pgx cannot roll back, it closes the connection, which rolls back
		ending, cancel := pause.Afterwards(ctx, time.Second)
		defer cancel()
		_ = tx.Rollback(ending)
	}()
	if guarded, err = fencedstore.Guard(ctx, tx, w.fence, w.opts...); err != nil {
		return guarded, err
	}
	if err := fn(ctx, tx); err != nil {
		return guarded, guarded.Explain(err)
	}
	if err := h.Guard(ctx, tx); err != nil {
		return guarded, err
	}
	if err := guarded.Seal(ctx); err != nil {
		return guarded, err
	}
	if err := h.Err(); err != nil {
		return guarded, err
	}
	_ = protocol.Unconfirmed(h.session.conn) // of an earlier commit
	err = tx.Commit(ctx)
	if err == nil && protocol.Unconfirmed(h.session.conn) {
		err = protocol.ErrUnconfirmed
	}
	// the driver may have cancelled the wait for the standby, which no error tells
	if err = cmp.Or(err, ctx.Err()); err != nil && !protocol.RolledBack(err) {
		if r := guarded.Receipt(); r != (fencedstore.Receipt{}) {
			err = &fencedstore.OutcomeUnknownError{Receipt: r, Err: err}
		} else {
			err = fmt.Errorf("%w: %w", pglock.ErrOutcomeUnknown, err)
		}
		return guarded, failure.At(ctx, err, "advisory: commit under lock %q", h.lease.Name())
	}
	return guarded, guarded.Explain(err)
}

// Guard asks, inside a transaction of any session of the database, whether the session of the Held still has the
// advisory lock. If not, it returns ErrLost (LostError): then roll back. Call it as the last statement before COMMIT,
// or at the end of the function that you give to fencedstore.Store.Write. Guard does not keep the lock: if the session
// of the advisory lock ends between Guard and the end of COMMIT, an old program may get the lock before the commit is
// done. Write has no such gap. Guard only asks: it passes no fence, and so has no fencedstore.Guarded. In a transaction
// of your own, pass the fence with fencedstore.Guard(ctx, tx, held.Lease()) first.
func (h *Held) Guard(ctx context.Context, tx pgx.Tx) error {
	if refuse.IsNil(tx) {
		return refuse.Nil("tx", "be a pgx.Tx")
	}
	return h.guard(ctx, func(sql string, args []any, holds *bool) error {
		return tx.QueryRow(ctx, sql, args...).Scan(holds)
	})
}

// GuardSQL is Guard for a transaction of database/sql.
func (h *Held) GuardSQL(ctx context.Context, tx fencedstore.SQLTx) error {
	if refuse.IsNil(tx) {
		return refuse.Nil("tx", "be a *sql.Tx, or what wraps one")
	}
	return h.guard(ctx, func(query string, args []any, holds *bool) error {
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if rows.Next() {
			err = rows.Scan(holds)
		}
		return errors.Join(err, rows.Err())
	})
}

func (h *Held) guard(ctx context.Context, ask func(sql string, args []any, holds *bool) error) error {
	if err := h.Err(); err != nil {
		return err
	}
	sql, args := h.session.holds()
	var holds bool
	if err := ask(sql, args, &holds); err != nil {
		return failure.At(ctx, err, "advisory: check the advisory lock (%v)", h.session.key)
	}
	if !holds {
		return h.session.lost(nil)
	}
	return nil
}
