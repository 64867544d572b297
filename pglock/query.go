package pglock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// executor runs the statements of this package: each is a transaction of its own at READ COMMITTED, in one round trip.
type executor struct {
	queries *queries

	// explicit says that the sessions' default isolation is not READ COMMITTED: statements then travel between BEGIN
	// and COMMIT, still in one round trip.
	explicit atomic.Bool

	// nameless says until when statements go without a name: something between us and the server loses named prepared
	// statements, as a pooler does that shares connections between transactions. One that was lost for another reason must
	// not cost us their speed for ever.
	nameless struct {
		until atomic.Int64 // nanoseconds since 1970
		times atomic.Int64 // in a row
	}
}

// How long statements go without a name after one was lost: longer each time.
const (
	firstNameless = 10 * time.Second
	lastNameless  = time.Hour
)

// errUnconfirmed marks a commit that PostgreSQL reported as done, but without waiting for the synchronous standby.
var errUnconfirmed = errors.New("committed without waiting for the synchronous standby")

const unconfirmedKey = "pglock.unconfirmed commit"

// ObserveCommits prepares a connection configuration, before the pool is made, so that this library learns of a commit
// that PostgreSQL reports as done although its wait for a synchronous standby was cancelled (by pg_cancel_backend, say);
// the server tells so in a warning alone. With it such a grant is asked for again and such a fenced write is reported as
// ErrOutcomeUnknown. A handler that is set already is still called. Without synchronous replication it does nothing.
func ObserveCommits(config *pgx.ConnConfig) {
	next := config.OnNotice
	config.OnNotice = func(conn *pgconn.PgConn, notice *pgconn.Notice) {
		if notice.Code == "01000" && notice.Routine == "SyncRepWaitForLSN" {
			conn.CustomData()[unconfirmedKey] = true
		}
		if next != nil {
			next(conn, notice)
		}
	}
}

// Unconfirmed reports whether a commit on conn came without the synchronous standby's confirmation since it was last asked,
// and forgets it: ask before a commit, too, where others use the connection. It sees only connections whose configuration
// went through ObserveCommits.
func Unconfirmed(conn *pgx.Conn) bool {
	data := conn.PgConn().CustomData()
	_, found := data[unconfirmedKey]
	delete(data, unconfirmedKey)
	return found
}

// query runs one statement as a transaction of its own, whatever the session's default isolation, and gives each row to
// scan. It returns after the commit.
func (e *executor) query(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Rows) error) error {
	_ = Unconfirmed(conn) // of a commit that is not ours
	if !e.explicit.Load() {
		err := e.named(conn, func() error { return e.once(ctx, conn, sql, args, scan) })
		if sqlState(err) != stateIsolation {
			return confirmed(conn, err)
		}
		e.explicit.Store(true) // nothing was done; say it explicitly from now on
	}
	return confirmed(conn, e.named(conn, func() error { return e.between(ctx, conn, sql, args, scan) }))
}

// named runs f, and again without names for statements where a name was lost: then nothing was done.
func (e *executor) named(conn *pgx.Conn, f func() error) error {
	nameless := e.isNameless(conn)
	err := f()
	if nameless || !statementLost(err) {
		if err == nil && !nameless {
			e.nameless.times.Store(0)
		}
		return err
	}
	times := e.nameless.times.Add(1)
	e.nameless.until.Store(time.Now().Add(min(firstNameless<<min(times-1, 20), lastNameless)).UnixNano())
	return f()
}

// isNameless says that statements must be parsed and executed in one go. DescribeExec does it in two, and a pooler lets
// another client's statement come between.
func (e *executor) isNameless(conn *pgx.Conn) bool {
	return conn.Config().DefaultQueryExecMode == pgx.QueryExecModeDescribeExec || time.Now().UnixNano() < e.nameless.until.Load()
}

// between runs the statement between BEGIN and COMMIT, in one round trip; in three where statements have no name, as a
// batch cannot do that.
func (e *executor) between(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Rows) error) error {
	if !e.isNameless(conn) {
		return e.pipelined(ctx, conn, statement{sql, args, scan})
	}
	_, err := conn.Exec(ctx, beginReadCommitted, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		err = e.once(ctx, conn, sql, args, scan)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "commit", pgx.QueryExecModeSimpleProtocol)
	}
	rollBack(ctx, conn)
	return err
}

const beginReadCommitted = "begin isolation level read committed"

// statement is one of queries, with its arguments, and what reads its rows.
type statement struct {
	sql  string
	args []any
	scan func(pgx.Rows) error
}

// pipelined runs the first statement between BEGIN and COMMIT, and the others as a transaction of their own after it, all in
// one round trip. The error is that of the first and its commit: what goes wrong after it undoes nothing.
func (e *executor) pipelined(ctx context.Context, conn *pgx.Conn, first statement, others ...statement) error {
	defer rollBack(ctx, conn)
	batch := &pgx.Batch{}
	batch.Queue(beginReadCommitted)
	batch.Queue(first.sql, first.args...)
	batch.Queue("commit")
	for _, o := range others {
		batch.Queue(o.sql, o.args...)
	}
	results := conn.SendBatch(ctx, batch)
	_, err := results.Exec()
	if err == nil {
		err = first.read(results)
	}
	if err == nil {
		_, err = results.Exec()
	}
	if err == nil {
		for _, o := range others {
			_ = o.read(results)
		}
	}
	_ = results.Close() // it repeats an error that was read, or comes after the commit
	return err
}

func (o statement) read(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	return readAll(rows, o.scan)
}

// rollBack keeps a connection whose transaction has failed; where it fails the connection is closed, which rolls back too.
func rollBack(ctx context.Context, conn *pgx.Conn) {
	if conn.PgConn().TxStatus() == 'E' {
		_, _ = conn.Exec(ctx, "rollback")
	}
}

func (e *executor) once(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Rows) error) error {
	if e.isNameless(conn) && conn.Config().DefaultQueryExecMode != pgx.QueryExecModeSimpleProtocol {
		args = append([]any{pgx.QueryExecModeExec}, args...)
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	return readAll(rows, scan)
}

// statementLost reports that a prepared statement is not there, or another of its name is.
func statementLost(err error) bool {
	switch sqlState(err) {
	case "26000", "42P05":
		return true
	}
	return false
}

func readAll(rows pgx.Rows, scan func(pgx.Rows) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func confirmed(conn *pgx.Conn, err error) error {
	if Unconfirmed(conn) && err == nil {
		return errUnconfirmed
	}
	return err
}

// transientAttempts is how often a statement is sent that the server undoes for a reason that passes.
const transientAttempts = 10

// pause waits about d, with jitter, and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
