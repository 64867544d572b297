package fencedstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	// resolving bounds how long a write whose COMMIT was not answered asks what became of it.
	resolving = 5 * time.Second
	// rollingBack bounds a ROLLBACK while ctx lasts.
	rollingBack = time.Second
	// openingAgain is how often a write takes another connection when one was dead.
	openingAgain = 3
	// conflicts is how often a fence that met a serialization failure is tried again.
	conflicts = 20
)

// database is where writes go: a pool of pgx, or a *sql.DB of any driver.
type database interface {
	// lend takes a connection for one write.
	lend(ctx context.Context) (connection, error)
	// idle is how many connections may be dead without anybody's knowledge.
	idle() int
	// look is a look through the pool itself: the answer waits for what every COMMIT before it has waited for.
	look(ctx context.Context, r Receipt) (committed bool, err error)
	// lookBy is the look of a write whose COMMIT was not answered, and which has the lease.
	lookBy(lease *pglock.Lease) look
}

// connection is a connection that one write has for itself, with the write's transaction on it.
type connection interface {
	// begin sends BEGIN and the opening. If it fails, no transaction is open.
	begin(ctx context.Context, o opening, r Receipt) (passed, error)
	// commit sends the last check and COMMIT. sent is false if it did not send COMMIT. If it fails, no transaction is
	// open.
	commit(ctx context.Context, o opening) (sent bool, err error)
	// rollback ends the transaction, also when ctx has ended. A connection that cannot roll back is closed, which does.
	// It reports whether the callback had ended the transaction by itself.
	rollback(ctx context.Context) (ended bool)
	// unconfirmed reports whether a COMMIT since the last call was answered without the synchronous standby's
	// confirmation.
	unconfirmed() bool
	// isDead reports whether the connection has ended.
	isDead() bool
	// giveBack returns the connection, or ends one that is spoilt. No other call may follow.
	giveBack(ctx context.Context, spoilt bool)
}

// errEnded says that the callback has ended the transaction by itself.
var errEnded = fmt.Errorf("%w: the callback ended its transaction by itself", ErrLeftFence)

// write runs fn in a transaction under the fences of the opening, and tells the observer what became of it.
func write(ctx context.Context, db database, o opening, fn work) error {
	began := time.Now()
	err := o.lost()
	if err == nil {
		err = writeOnce(ctx, db, o, fn)
	}
	if err == nil {
		o.observeWrite(ctx, time.Since(began))
		return nil
	}
	if theirs, is := err.(ofCallback); is { //nolint:errorlint // not what is inside
		return failure.OfContext(ctx, o.observeRefusal(ctx, theirs.error))
	}
	return failure.At(ctx, o.observeRefusal(ctx, err), "fencedstore: write to %s", o)
}

// ofCallback is an error that fn has returned. The caller gets it as it is.
type ofCallback struct{ error }

// writeOnce is write without the observer.
func writeOnce(ctx context.Context, db database, o opening, fn work) (err error) {
	receipt, err := rows.take(o.home())
	if err != nil {
		return err
	}
	w := &writing{opening: o, db: db, receipt: receipt}
	defer func() {
		w.doubt = w.doubt || errors.Is(err, ErrLeftFence) // it may be prepared, and keeps the row
		w.end(ctx)
	}()
	if err := w.open(ctx); errors.Is(err, ErrDone) {
		err = confirmDone(ctx, db, receipt, err)
		w.doubt = w.doubt || !errors.Is(err, ErrDone) // the question may have the row still
		return err
	} else if err != nil {
		return err
	}
	err = w.call(ctx, fn)
	if theirs, is := err.(ofCallback); is { //nolint:errorlint // not what is inside
		if err = w.explainFailure(theirs.error); tellsTheEnd(err) == tellsTheEnd(theirs.error) {
			return ofCallback{err}
		}
		return err // what became of the lease is ours to say
	} else if errors.Is(err, errEnded) {
		return err
	} else if err != nil {
		return w.explainFailure(err)
	}
	// A COMMIT that is not answered long after the lease has ended is lost on the way: find out what became of it.
	patience := max(o.longestTTL(), time.Until(w.pass.At.Add(o.limit))) + resolving
	committing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = w.conn.unconfirmed() // of a commit that was the application's own
	sent, err := w.conn.commit(committing, o)
	unconfirmed := err == nil && w.conn.unconfirmed()
	if err == nil && !unconfirmed {
		err = committing.Err() // the driver may have cancelled the wait for the standby, which no error tells
	}
	switch {
	case unconfirmed:
		w.doubt = true
		err = errors.New("committed, but the wait for the synchronous standby was cancelled")
		return &OutcomeUnknownError{Receipt: receipt, Err: err}
	case err == nil:
		return nil
	case errors.Is(err, errEnded):
		return err
	case !sent || protocol.RolledBack(err):
		if protocol.State(err) == "25P02" {
			err = fmt.Errorf("a statement has failed, and the callback did not return its error: %w", err)
		}
		return fmt.Errorf("commit: %w", w.explainFailure(err))
	}
	if ctx.Err() == nil {
		err = failure.OfOurs(err)
	}
	w.giveBack(ctx) // the answer may need the pool's only one
	over, err := resolve(ctx, receipt, err, db.lookBy(o.fences[0].Lease))
	w.doubt = !over
	if late := w.explainLimit(err, true); over && err != nil && late != nil {
		return late
	}
	return err
}

// writing is one write under way.
type writing struct {
	opening
	db      database
	receipt Receipt
	doubt   bool       // about a transaction that uses the receipt's row: is it over, and what became of it?
	holds   []func()   // what ends the extensions of its leases
	conn    connection // nil when it has none
	pass    passage
	late    bool // a transaction on the connection has outlasted its limits
	look    *lookout
}

// end gives back whatever the write has. The next write may use the receipt's row if nothing is in doubt.
func (w *writing) end(ctx context.Context) {
	w.giveBack(ctx)
	_ = w.look.stop()
	if !w.doubt {
		rows.putBack(w.home(), w.receipt)
	}
	for _, drop := range w.holds {
		drop()
	}
}

// open begins a transaction that passes its fences. A connection that was dead, or died before anything was done, is
// replaced by another one. A serialization failure of the fence is tried again: under REPEATABLE READ every wait for a
// predecessor ends in one.
func (w *writing) open(ctx context.Context) error {
	most := openingAgain + w.db.idle()
	for dead, again := 0, 0; ; {
		if err := w.lend(ctx); err != nil {
			return err
		}
		err := w.begin(ctx)
		if err == nil {
			w.doubt = false // whoever used the row before has let it go
			return nil
		}
		isDead := w.conn.isDead()
		w.giveBack(ctx)
		if protocol.State(err) == "40001" && again < conflicts && w.lost() == nil {
			again++
			continue
		}
		if late := w.explainLimit(err, isDead); late != nil {
			return late
		}
		if errors.Is(err, ErrTimeLimit) {
			return err
		}
		if !isDead || dead >= most || ctx.Err() != nil || w.lost() != nil {
			return w.explain(err)
		}
		dead++
		w.late, w.pass = false, passage{} // those were of the dead one
	}
}

// lend makes the leases last for as long as the transaction may take, and then borrows a connection: an extension may
// need one too, and there may be no more. A wait for the connection that uses up what the leases have to spare makes it
// extend them again, by so much more.
func (w *writing) lend(ctx context.Context) error {
	most := pglock.MaxTTL - w.limit
	for spare := slack(w.limit); ; {
		began := time.Now()
		holds, err := w.extend(ctx, spare)
		w.holds = append(w.holds, holds...)
		if err == nil {
			w.conn, err = w.db.lend(ctx)
		}
		took := time.Since(began)
		if err != nil || w.limit == 0 || took <= spare || spare >= most {
			return err
		}
		w.conn.giveBack(ctx, false)
		w.conn = nil
		spare = min(2*took, most)
	}
}

// begin begins the transaction. It waits for the answer no longer than the server may take: the way there may be dead.
func (w *writing) begin(ctx context.Context) error {
	w.late = w.late || w.pass.overran() // one that has failed
	w.pass = w.passage()
	_ = w.look.stop()
	w.look = w.lookout(ctx, w.pass)
	bounded, cancel := context.WithDeadline(ctx, w.pass.At.Add(w.longest()+lateBy))
	defer cancel()
	p, err := w.conn.begin(bounded, w.opening, w.receipt)
	if err == nil {
		w.look.passed(p.pid)
	} else if protocol.State(err) == "" && bounded.Err() != nil && ctx.Err() == nil {
		return w.tooLate(failure.OfOurs(err))
	}
	return err
}

// explainLimit returns a TimeLimitError if one of the fence's limits ended the transaction.
func (w *writing) explainLimit(err error, isDead bool) error {
	if w.pass.explain(err, isDead) == nil {
		return nil
	}
	return w.tooLate(err)
}

// tooLate is the TimeLimitError of the transaction.
func (w *writing) tooLate(err error) error {
	late := w.pass.error(err)
	late.Wait = w.look.stop()
	return late
}

// giveBack returns the connection, if there is one, and ends it if one of its transactions has outlasted its limits.
func (w *writing) giveBack(ctx context.Context) {
	if w.conn == nil {
		return
	}
	w.doubt = w.doubt || w.conn.isDead()
	w.conn.giveBack(ctx, w.late || w.pass.overran())
	w.conn = nil
}

// call runs fn and rolls back unless it returned nil, also when it panics. fn's context ends with ctx, with each of the
// leases and, with a time limit, shortly after that limit.
func (w *writing) call(ctx context.Context, fn work) (err error) {
	done := false
	defer func() {
		ended := !done && w.conn.rollback(ctx)
		w.doubt = w.doubt || ended // it may be prepared, and keeps the row, also if fn has panicked
		if !ended || err == nil {
			return
		}
		switch e := err.(type) { //nolint:errorlint // not what is inside
		case ofCallback:
			err = e.error
		case *TimeLimitError: // but it may be committed
			err = failure.OfOurs(e.Err)
		}
		err = fmt.Errorf("%w: %w", errEnded, w.explainRefusal(err))
	}()
	inside := &around{opening: w.opening, outer: writeAround(ctx)}
	defer inside.over.Store(true)
	fnCtx, cancel := context.WithCancelCause(context.WithValue(ctx, aroundKey{}, inside))
	defer cancel(nil)
	for _, f := range w.fences {
		life := hooks.Of(f.Lease).Life()
		stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
		defer stop()
	}
	if w.limit > 0 {
		var stop context.CancelFunc
		late := w.pass.error(context.DeadlineExceeded)
		fnCtx, stop = context.WithDeadlineCause(fnCtx, w.pass.At.Add(w.limit+lateBy), late)
		defer stop()
	}
	err = fn(fnCtx, w.conn)
	if err != nil && errors.Is(context.Cause(fnCtx), ErrTimeLimit) && !errors.Is(err, ErrTimeLimit) {
		return w.tooLate(err)
	}
	if err != nil {
		return ofCallback{err}
	}
	if err := context.Cause(fnCtx); err != nil {
		return err
	}
	if err := w.lost(); err != nil {
		return err
	}
	done = true
	return nil
}

// explainFailure returns fn's own error, with the loss of the lease before it when that is the likely reason: the
// server ends a fenced transaction when its lease ends. What the application's own statements were refused for is left
// as it is.
func (w *writing) explainFailure(err error) error {
	if late := w.explainLimit(err, w.conn.isDead()); late != nil {
		err = late
	}
	return w.explainRefusal(err)
}

// explainRefusal is explainFailure without the time limits.
func (w *writing) explainRefusal(err error) error {
	if !errors.Is(err, ErrTimeLimit) {
		err = w.explainOwn(err)
	}
	if lost := w.lost(); lost != nil && !tellsTheEnd(err) {
		return fmt.Errorf("%w: %w", lost, err)
	}
	return err
}

// tellsTheEnd reports whether an error tells the end of a lease.
func tellsTheEnd(err error) bool {
	return errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrReleased)
}
