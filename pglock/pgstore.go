package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgStore speaks to PostgreSQL: through the application's pool, and for heartbeats through a connection of its own, so
// that a pool that the application has exhausted costs no lease.
type pgStore struct {
	pool    *pgxpool.Pool
	queries *queries

	// explicit says that the sessions' default isolation is not READ COMMITTED: statements then travel between BEGIN
	// and COMMIT, still in one round trip.
	explicit atomic.Bool

	// unnamed says that something between us and the server loses named prepared statements, as a pooler does that shares
	// connections between transactions: statements then go without a name.
	unnamed atomic.Bool

	acquires, requests *lane[ask, answer]
	releases           *lane[claim, ending]
	checks             *lane[claim, time.Duration]

	ears     *pgx.ConnConfig // for LISTEN; nil: made as the pool makes its connections
	beatConn *pgx.Conn       // owned by the heartbeat's goroutine
}

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

// Unconfirmed reports whether the last commit on conn came without the synchronous standby's confirmation, and forgets
// it. It sees only connections whose configuration went through ObserveCommits.
func Unconfirmed(conn *pgx.Conn) bool {
	data := conn.PgConn().CustomData()
	_, found := data[unconfirmedKey]
	delete(data, unconfirmedKey)
	return found
}

// query runs one statement as a transaction of its own at READ COMMITTED, whatever the session's default, and gives
// each row to scan. It returns after the commit.
func (s *pgStore) query(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Rows) error) error {
	if !s.explicit.Load() {
		named := !s.unnamed.Load()
		err := s.once(ctx, conn, sql, args, scan)
		if named && statementLost(err) {
			s.unnamed.Store(true)
			err = s.once(ctx, conn, sql, args, scan) // nothing was done
		}
		if sqlState(err) != stateIsolation {
			return confirmed(conn, err)
		}
		s.explicit.Store(true) // nothing was done; say it explicitly from now on
	}
	named := !s.unnamed.Load()
	err := s.between(ctx, conn, sql, args, scan)
	if named && statementLost(err) {
		s.unnamed.Store(true)
		err = s.between(ctx, conn, sql, args, scan) // nothing was done
	}
	return confirmed(conn, err)
}

// between runs the statement between BEGIN and COMMIT, in one round trip; in three where statements have no name, as a
// batch cannot do that.
func (s *pgStore) between(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Rows) error) error {
	if !s.nameless(conn) {
		return s.pipelined(ctx, conn, statement{sql, args, scan})
	}
	_, err := conn.Exec(ctx, beginReadCommitted, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		err = s.once(ctx, conn, sql, args, scan)
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
func (s *pgStore) pipelined(ctx context.Context, conn *pgx.Conn, first statement, others ...statement) error {
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

func (s *pgStore) once(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Rows) error) error {
	if s.nameless(conn) && conn.Config().DefaultQueryExecMode != pgx.QueryExecModeSimpleProtocol {
		args = append([]any{pgx.QueryExecModeExec}, args...)
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	return readAll(rows, scan)
}

// nameless says that statements must be parsed and executed in one go. DescribeExec does it in two, and a pooler lets
// another client's statement come between.
func (s *pgStore) nameless(conn *pgx.Conn) bool {
	return s.unnamed.Load() || conn.Config().DefaultQueryExecMode == pgx.QueryExecModeDescribeExec
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

// pooled runs one statement on a connection of the pool, again when the server undid it for a reason that passes.
func (s *pgStore) pooled(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	return s.pooledFor(ctx, never, sql, args, scan)
}

// pooledFor is pooled with a limit to how long the server may take, once there is a connection: one that died in silence
// would hold the call until ctx ends.
func (s *pgStore) pooledFor(ctx context.Context, limit time.Duration, sql string, args []any, scan func(pgx.Rows) error) error {
	return s.onPooled(ctx, func(conn *pgx.Conn) error {
		if limit == never {
			return s.query(ctx, conn, sql, args, scan)
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return s.query(ctx, conn, sql, args, scan)
	})
}

// onPooled lends f a connection of the pool, again when the server undid what it did for a reason that passes.
func (s *pgStore) onPooled(ctx context.Context, f func(*pgx.Conn) error) error {
	const attempts = 10
	for attempt := 1; ; attempt++ {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return &noConnectionError{err}
		}
		err = f(conn.Conn())
		conn.Release()
		if !transient(err) || attempt == attempts || !pause(ctx, time.Duration(attempt)*time.Millisecond) {
			return err
		}
	}
}

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

// beating is the heartbeat's own connection.
func (s *pgStore) beating(ctx context.Context) (*pgx.Conn, error) {
	if s.beatConn != nil && !s.beatConn.IsClosed() {
		return s.beatConn, nil
	}
	conn, err := s.connect(ctx)
	s.beatConn = conn
	return conn, err
}

// connect opens a connection outside the pool, made as the pool would make it.
func (s *pgStore) connect(ctx context.Context) (*pgx.Conn, error) {
	pool := s.pool.Config()
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, fmt.Errorf("BeforeConnect: %w", err)
		}
	}
	ObserveCommits(config)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if pool.AfterConnect != nil {
		if err := pool.AfterConnect(ctx, conn); err != nil {
			_ = conn.Close(ctx)
			return nil, fmt.Errorf("AfterConnect: %w", err)
		}
	}
	if pool.PrepareConn != nil {
		if ok, err := pool.PrepareConn(ctx, conn); err != nil || !ok {
			_ = conn.Close(ctx)
			return nil, fmt.Errorf("PrepareConn refused a connection of the client: %w", errors.Join(err, ctx.Err()))
		}
	}
	return conn, nil
}

func (s *pgStore) rest() {
	if s.beatConn != nil {
		farewell(s.beatConn)
		s.beatConn = nil
	}
}

func farewell(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // says goodbye after everything else ended
	defer cancel()
	_ = conn.Close(ctx)
}
