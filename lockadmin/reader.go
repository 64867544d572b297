package lockadmin

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// How long a reader waits.
const (
	patience    = 2 * time.Second // with whoever has locked a whole table
	longestLook = 10 * time.Second

	historyPatience = time.Second / 10 // with whoever has locked the history
)

// reader reads in one transaction, which waits for nothing longer than a moment. After a failure it asks the server
// nothing more, and reads nothing.
type reader struct {
	ctx context.Context //nolint:containedctx // of the call that made the transaction
	tx  pgx.Tx
	at  time.Time
	err error // the first failure
}

func (a *Admin) read(ctx context.Context, f func(*reader)) error {
	return pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			longest := longestLook
			if deadline, ok := ctx.Deadline(); ok {
				longest = max(time.Millisecond, min(longest, time.Until(deadline)))
			}
			r := &reader{ctx: ctx, tx: tx}
			r.row(protocol.LookBriefly, []any{millis(min(patience, longest/2)), millis(longest)}, moment(&r.at))
			if r.err == nil {
				f(r)
			}
			return r.err
		})
}

func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// rows reads the answer of one statement. It names no prepared statement, which poolers may lose.
func rows[T any](r *reader, sql string, args []any, scan func(pgx.Rows) (T, error)) []T {
	if r.err != nil {
		return nil
	}
	mode := r.tx.Conn().Config().DefaultQueryExecMode
	if mode != pgx.QueryExecModeSimpleProtocol {
		mode = pgx.QueryExecModeExec
	}
	answer, err := r.tx.Query(r.ctx, sql, append([]any{mode}, args...)...)
	if err != nil {
		r.err = err
		return nil
	}
	all, err := pgx.CollectRows(answer, func(pgx.CollectableRow) (T, error) { return scan(answer) })
	r.err = err
	return all
}

// row reads the answer of a statement that has at most one row.
func (r *reader) row(sql string, args []any, into ...any) {
	rows(r, sql, args, func(rows pgx.Rows) (struct{}, error) { return struct{}{}, rows.Scan(into...) })
}

// apart lets f read within a savepoint, and returns its failure: the transaction goes on.
func (r *reader) apart(f func(*reader)) error {
	if r.err != nil {
		return r.err
	}
	tx, err := r.tx.Begin(r.ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(r.ctx) }() // the transaction ends anyway
	inner := &reader{ctx: r.ctx, tx: tx, at: r.at}
	f(inner)
	return inner.err
}
