package fencedstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Guarded is a transaction of the application's own that has passed its fences.
type Guarded struct {
	tx      ownTx
	o       opening
	receipt Receipt
	pass    passage // zero: Guard has failed, and no time limit was the reason
}

// Guard puts the application's own transaction under the fence of the lease's resource, or under what Fence or Fences
// say. Call it before the first read that the write depends on. The server checks the token and the lease now, and
// checks the lease again inside COMMIT. If the lease has ended, COMMIT fails with SQLSTATE LK001 or LK003;
// Guarded.Explain makes that an ErrLost. After an error of Guard roll the transaction back; nothing in it is under the
// fence.
//
// The transaction may take as long as the lease has left now, or as long as WithTimeLimit says. The server ends a
// transaction that hangs for that long; from PostgreSQL 17 on it ends any that takes longer, but in the middle of COPY
// FROM STDIN none. SET CONSTRAINTS ALL IMMEDIATE after Guard uses up the check inside COMMIT, and ROLLBACK TO a
// savepoint from before Guard takes the fence back. If your code may do such things, end the transaction with
// Guarded.Seal, as stores always do.
//
// After an ErrTimeLimit close the connection, and do not give it back to a pool: from PostgreSQL 17 on the server may
// end its next transaction.
//
// Options: WithTimeLimit, WithReceipt, WithKey, WithRetention. Errors: ErrStaleToken (StaleTokenError), ErrTimeLimit
// (TimeLimitError), pglock.ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase, ErrPermission, ErrReadOnly, ErrSchema;
// with WithKey also ErrDone (DoneError) and ErrKeyTooOld.
func Guard(ctx context.Context, tx pgx.Tx, fenced Fenced, opts ...Option) (*Guarded, error) {
	if refuse.IsNil(tx) {
		return nil, refuse.Nil("tx", "be a pgx.Tx")
	}
	return guard(ctx, ownPgx{tx}, fenced, opts)
}

// GuardSQL is Guard for a transaction of database/sql, with any driver whose errors have a method SQLState.
func GuardSQL(ctx context.Context, tx SQLTx, fenced Fenced, opts ...Option) (*Guarded, error) {
	if refuse.IsNil(tx) {
		return nil, refuse.Nil("tx", "be a *sql.Tx, or what wraps one")
	}
	return guard(ctx, ownSQL{tx}, fenced, opts)
}

// isZero says that the transaction was never given to Guard.
func (g *Guarded) isZero() bool { return g == nil || len(g.o.fences) == 0 }

// Receipt names the row that the transaction leaves if Guard was called WithReceipt. Otherwise it is zero.
func (g *Guarded) Receipt() Receipt { return protocol.OrZero(g).receipt }

// Seal protects a transaction whose code may have used SET CONSTRAINTS or ROLLBACK TO. Call it as the last statement.
// It refuses a transaction that is no longer under the fence (ErrLeftFence), checks the lease, and holds the lock until
// COMMIT, even if SET CONSTRAINTS ALL IMMEDIATE has used up the check inside COMMIT. It takes several leases in the
// order of their names. Stores do this by themselves.
func (g *Guarded) Seal(ctx context.Context) error {
	if g.isZero() {
		return refuse.Invalid("guarded", "nil or zero", "be made by Guard or GuardSQL")
	}
	err := g.o.lost()
	if err == nil {
		err = g.tx.seal(ctx, g.o)
	}
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone) {
		err = fmt.Errorf("the transaction that Guard was given has ended, by a commit, a rollback or its context: "+
			"call Seal as its last statement: %w", err)
	}
	if err != nil {
		err = g.explainSeal(err)
	}
	return failure.At(ctx, g.o.observeRefusal(ctx, err), "fencedstore: seal %s", g.o)
}

// Explain turns an error of the transaction, of its COMMIT or of one of its statements, into the errors of this package
// and of pglock. It returns other errors as they are, such as one of a statement of the application's own that the
// server has refused for want of a right, and any error if Guard was not called.
//
// A TimeLimitError is what the server says was a time limit. If the driver only says that the connection has ended or
// that a context has, the time limit may have been the reason. But such an error of COMMIT leaves open whether it was
// committed, and Explain cannot know which statement failed: it returns the error as it is. Of a statement before
// COMMIT that means that nothing was committed. Of COMMIT, ask Store.Outcome with the Receipt; also after SQLSTATE
// 57014, even as a TimeLimitError: a server that logs durations may heed a cancellation just after it has committed.
//
// The observer of the lease's client hears of a refusal that Explain explains (pglock.EventRefused). So call Explain
// once for each error.
func (g *Guarded) Explain(err error) error {
	if err == nil || g.isZero() {
		return err
	}
	explained := g.o.explainOwn(err)
	if late := g.pass.explain(err, false); late != nil {
		explained = late
	}
	if kindOf(err) == "" && !errors.Is(err, ErrStaleToken) { // else the observer has heard of it
		_ = g.o.observeRefusal(g.o.fences[0].Lease.Context(), explained)
	}
	return explained
}

// explainSeal explains an error of the last statement before COMMIT, which is ours.
func (g *Guarded) explainSeal(err error) error {
	if late := g.pass.explain(err, saysClosed(err)); late != nil { // COMMIT was not sent
		return late
	}
	return g.o.explain(err)
}

// ForSiblings is for the packages of this module alone: it tells how long the transaction may take.
func (g *Guarded) ForSiblings(hooks.Key) hooks.Passage { return hooks.Passage(g.pass) }

// guard puts a transaction of the application under its fences, and tells the observer of a refusal.
func guard(ctx context.Context, tx ownTx, fenced Fenced, opts []Option) (*Guarded, error) {
	o, err := config{}.with(opts).open(fenced, true)
	if err != nil {
		return nil, err
	}
	g := &Guarded{tx: tx, o: o}
	if err = o.lost(); err == nil {
		err = g.begin(ctx)
	}
	return g, failure.At(ctx, o.observeRefusal(ctx, err), "fencedstore: guard %s", o)
}

// begin is guard without the observer. The extensions of the leases end by themselves, because it does not hear of the
// end of the transaction.
func (g *Guarded) begin(ctx context.Context) (err error) {
	o := g.o
	holds, err := o.extend(ctx, slack(o.limit))
	defer func() {
		for _, drop := range holds {
			if err != nil {
				drop()
			}
		}
	}()
	if err != nil {
		return err
	}
	var receipt *Receipt
	if o.receipt {
		if g.receipt, err = newReceipt(o.home()); err != nil {
			return err
		}
		receipt = &g.receipt
	}
	p := o.passage()
	look := o.lookout(ctx, p)
	answer, err := o.read(g.tx.query(ctx, o.sql, o.arguments(receipt)))
	wait, left := look.stop(), answer.left
	if err == nil && left+time.Since(p.At) < o.limit-o.limit/10 {
		return refuse.Invalid("time limit", o.limit.String(),
			"be given to the first statement of the transaction: its snapshot is older than the extension of the lease")
	}
	if err == nil {
		g.pass = p
		return nil
	}
	if late := p.explain(err, saysClosed(err)); late != nil {
		g.pass, late.Wait = p, wait
		return late
	}
	if err = o.explain(err); errors.Is(err, pglock.ErrReadOnly) {
		err = fmt.Errorf("%w (or the transaction itself is READ ONLY: begin it READ WRITE)", err)
	}
	return err
}

// SQLTx is a transaction of database/sql: a *sql.Tx, or a wrapper that passes statements and arguments on unchanged,
// such as the ConnPool that GORM has inside Transaction. If an ORM rewrites statements, as bun does, give the *sql.Tx
// inside. A *sql.DB is not an SQLTx, because each of its statements would be a transaction.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// ownTx is a transaction of the application's own.
type ownTx interface {
	query(ctx context.Context, sql string, args []any) pgx.Row
	seal(ctx context.Context, o opening) error
}

type ownPgx struct{ pgx.Tx }

func (tx ownPgx) query(ctx context.Context, sql string, args []any) pgx.Row {
	return tx.QueryRow(ctx, sql, args...)
}

func (tx ownPgx) seal(ctx context.Context, o opening) error {
	_, err := tx.Exec(ctx, protocol.Seal(o.schema()), o.resources())
	return ofSeal(err)
}

type ownSQL struct{ SQLTx }

func (tx ownSQL) query(ctx context.Context, sql string, args []any) pgx.Row {
	rows, err := tx.QueryContext(ctx, sql, args...)
	return &sqlRow{rows, err}
}

func (tx ownSQL) seal(ctx context.Context, o opening) error {
	_, err := tx.ExecContext(ctx, protocol.Seal(o.schema()), arrayText(o.resources()))
	return ofSeal(err)
}

// sqlRow is the only row of a query.
type sqlRow struct {
	rows *sql.Rows
	err  error
}

func (r *sqlRow) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), sql.ErrNoRows)
	}
	return cmp.Or(r.rows.Scan(into...), r.rows.Close())
}

// arrayText writes an array of texts as PostgreSQL reads it, for drivers that take no arrays.
func arrayText(texts []string) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = `"` + quote.Replace(text) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}
