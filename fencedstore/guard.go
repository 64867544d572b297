package fencedstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/pglock"
)

// Guard puts the application's own transaction under the fence of the lease's resource. Call it before the first read
// that the write depends on. The server checks the token and the lease now, and checks the lease again inside COMMIT.
// If the lease has ended, COMMIT fails with SQLSTATE LK001 or LK003; Explain makes that an ErrLost. After an error
// roll the transaction back; nothing in it is under the fence.
//
// The transaction may take as long as the lease has left now, or as long as WithTimeLimit says. The server ends a
// transaction that hangs for that long; from PostgreSQL 17 on it ends any that takes longer. SET CONSTRAINTS ALL
// IMMEDIATE after Guard uses up the check inside COMMIT, and ROLLBACK TO a savepoint from before Guard takes the fence
// back. If your code may do such things, end the transaction with Seal, as Store.Write always does.
//
// After an ErrTimeLimit close the connection, and do not give it back to a pool: from PostgreSQL 17 on the server may
// end its next transaction.
//
// Options: WithResource, WithSameToken, WithTimeLimit, WithReceipt. Errors: ErrStaleToken (StaleTokenError),
// ErrTimeLimit (TimeLimitError), pglock.ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase, ErrPermission.
func Guard(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, opts ...FenceOption) error {
	c, o, err := openGuard(checkPgxTx(tx), lease, opts)
	if err != nil {
		return err
	}
	return c.guard(ctx, o, inPgxTx(ctx, tx))
}

// GuardSQL is Guard for a transaction of database/sql, with any driver whose errors have a method SQLState.
func GuardSQL(ctx context.Context, tx SQLTx, lease *pglock.Lease, opts ...FenceOption) error {
	c, o, err := openGuard(checkSQLTx(tx), lease, opts)
	if err != nil {
		return err
	}
	return c.guard(ctx, o, inSQLTx(ctx, tx))
}

// GuardOnce is Guard for a transaction that does the work of a key, as Store.Once does. The transaction also records
// the key. If the work was done before, the error is ErrDone (DoneError) and nothing has changed: roll the transaction
// back. Unlike Once, it does not wait until the disk and the synchronous standby have that work. WithRetention applies,
// and the same grant may do the work of many keys. Other errors are those of Guard, and ErrKeyTooOld.
func GuardOnce(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, key string, opts ...FenceOption) error {
	if err := checkPgxTx(tx); err != nil {
		return err
	}
	c, o, err := openOnce(lease, key, opts, false)
	if err != nil {
		return err
	}
	return c.guard(ctx, o, inPgxTx(ctx, tx))
}

// GuardOnceSQL is GuardOnce for a transaction of database/sql.
func GuardOnceSQL(ctx context.Context, tx SQLTx, lease *pglock.Lease, key string, opts ...FenceOption) error {
	if err := checkSQLTx(tx); err != nil {
		return err
	}
	c, o, err := openOnce(lease, key, opts, false)
	if err != nil {
		return err
	}
	return c.guard(ctx, o, inSQLTx(ctx, tx))
}

func checkPgxTx(tx pgx.Tx) error {
	if tx == nil {
		return invalid("tx", "nil", "be a pgx.Tx")
	}
	return nil
}

func checkSQLTx(tx SQLTx) error {
	if plain, is := tx.(*sql.Tx); tx == nil || is && plain == nil {
		return invalid("tx", "nil", "be a *sql.Tx, or what wraps one")
	}
	return nil
}

// openGuard is the opening of a transaction of the application's own under one fence.
func openGuard(bad error, lease *pglock.Lease, opts []FenceOption) (c config, o opening, err error) {
	if bad != nil {
		return c, o, bad
	}
	if c, err = newConfig(lease, opts); err == nil {
		err = c.refuse(false, false)
	}
	if err != nil {
		return c, o, err
	}
	return c, c.openOne(lease), nil
}

// query sends the opening in a transaction of the application's own.
type query func(sql string, args []any) pgx.Row

func inPgxTx(ctx context.Context, tx pgx.Tx) query {
	return func(sql string, args []any) pgx.Row { return tx.QueryRow(ctx, sql, args...) }
}

func inSQLTx(ctx context.Context, tx SQLTx) query {
	return func(sql string, args []any) pgx.Row {
		rows, err := tx.QueryContext(ctx, sql, args...)
		return &sqlRow{rows, err}
	}
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
		if err := r.rows.Err(); err != nil {
			return err
		}
		return sql.ErrNoRows
	}
	if err := r.rows.Scan(into...); err != nil {
		return err
	}
	return r.rows.Close()
}

// guard puts a transaction of the application under its fences, and tells the observer of a refusal.
func (c config) guard(ctx context.Context, o opening, send query) error {
	err := o.lost()
	if err == nil {
		err = c.guardOnce(ctx, o, send)
	}
	return failure.At(ctx, o.observeRefusal(ctx, err), "fencedstore: guard %s", o)
}

// guardOnce is guard without the observer. The extensions of the leases end by themselves, because it does not hear of
// the end of the transaction.
func (c config) guardOnce(ctx context.Context, o opening, send query) (err error) {
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
	if c.receipt != nil {
		r, err := newReceipt(o.schema())
		if err != nil {
			return err
		}
		receipt, *c.receipt = &r, r
	}
	p := o.passage()
	look := o.lookout(ctx, p)
	answer, err := o.read(send(o.sql, o.arguments(receipt)))
	wait, left := look.stop(), answer.left
	if err == nil && left+time.Since(p.At) < o.limit-o.limit/10 {
		return invalid("time limit", o.limit.String(),
			"be given to the first statement of the transaction: its snapshot is older than the extension of the lease")
	}
	if err == nil {
		p.remember(o.fences)
		return nil
	}
	if late := p.explain(err, saysClosed(err)); late != nil {
		p.remember(o.fences)
		late.Wait = wait
		return late
	}
	f := o.blamed(err)
	return translate(err, f.Lease, f.Resource)
}

// Explain turns an error of a guarded transaction, of its COMMIT or of one of its statements, into the errors of this
// package and of pglock. If a time limit of the latest Guard with this lease has ended the transaction, Explain finds
// that out even when the driver only says that the connection is bad. It returns other errors as they are. Of the
// options only WithResource matters.
//
// The observer of the lease's client hears of a refusal that Explain explains (pglock.EventRefused). So call Explain
// once for each error.
func Explain(err error, lease *pglock.Lease, opts ...FenceOption) error {
	if err == nil || lease == nil {
		return err
	}
	c, configErr := newConfig(lease, opts)
	if configErr != nil && c.resource == "" {
		c.resource = lease.Resource()
	}
	o := opening{fences: []Fence{{Lease: lease, Resource: c.resource}}}
	return o.explainGuarded(err, func() error { return translate(err, lease, c.resource) })
}

// explainGuarded explains an error of a guarded transaction, and tells the observer of a refusal.
func (o opening) explainGuarded(err error, otherwise func() error) error {
	explained := error(nil)
	if p, known := lastPassage(o.fences[0].Lease); known {
		if late := p.explain(err, saysClosed(err)); late != nil {
			explained = late
		}
	}
	if explained == nil {
		explained = otherwise()
	}
	if kindOf(err) == "" && !errors.Is(err, ErrStaleToken) { // else the observer has heard of it
		_ = o.observeRefusal(o.fences[0].Lease.Context(), explained)
	}
	return explained
}
