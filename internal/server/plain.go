package server

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// Plain is a database for code that holds no lock: a pool, and nothing that must be closed. It is safe for concurrent
// use.
type Plain struct {
	Queries  *protocol.Queries
	executor protocol.Executor
	pool     *pgxpool.Pool
}

// NewPlain uses the schema of the pool's database.
func NewPlain(pool *pgxpool.Pool, schema string) *Plain {
	return &Plain{Queries: protocol.NewQueries(schema), pool: pool}
}

// Query runs one step on a connection of the pool, and repeats it if the server undid it for a passing reason. One that
// has waited for somebody's lock for as long as it may is not repeated: its error says who that was, and another
// attempt would only wait again.
func (p *Plain) Query(ctx context.Context, step protocol.Step) error {
	return p.run(ctx, protocol.Patience, func(ctx context.Context, conn *pgx.Conn) error {
		return p.executor.Run(ctx, conn, step)
	})
}

func (p *Plain) run(ctx context.Context, limit time.Duration, f func(context.Context, *pgx.Conn) error) error {
	var locked error
	err := repeat(ctx, p.borrow, func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := f(ctx, conn)
		if protocol.LockedOut(err) {
			locked = err
			return nil
		}
		return err
	})
	return cmp.Or(err, locked)
}

// Rows is Query for a statement whose rows it returns, each as scan reads it.
func Rows[T any](ctx context.Context, p *Plain, sql string, args []any, scan func(pgx.Rows) (T, error)) ([]T, error) {
	return collect(ctx, p, protocol.Patience, protocol.Step{SQL: sql, Args: args}, scan)
}

// later is how long after its caller the server ends a statement: the caller says then that its time was up.
const later = 100 * time.Millisecond

// List is Rows for a statement that may have to read whole tables. It may take as long as ctx allows, or as Patience
// does if ctx has no deadline. Soon after that the server ends it, also when nobody waits for it any more.
func List[T any](ctx context.Context, p *Plain, sql string, args []any, scan func(pgx.Rows) (T, error)) ([]T, error) {
	limit := protocol.Patience
	if deadline, bounded := ctx.Deadline(); bounded {
		limit = time.Until(deadline)
	}
	return collect(ctx, p, limit, protocol.Step{SQL: sql, Args: args, Limit: max(limit, 0) + later}, scan)
}

func collect[T any](ctx context.Context, p *Plain, limit time.Duration, step protocol.Step,
	scan func(pgx.Rows) (T, error)) (all []T, err error) {
	step.Scan = func(rows pgx.Rows) error {
		one, err := scan(rows)
		all = append(all, one)
		return err
	}
	err = p.run(ctx, limit, func(ctx context.Context, conn *pgx.Conn) error {
		all = nil
		return p.executor.Run(ctx, conn, step)
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func (p *Plain) borrow(ctx context.Context) (*pgx.Conn, func(), error) { return borrow(ctx, p.pool) }

// borrow takes a connection of the pool, until give.
func borrow(ctx context.Context, pool *pgxpool.Pool) (conn *pgx.Conn, give func(), err error) {
	pooled, err := Borrow(ctx, pool)
	if err != nil {
		return nil, nil, err
	}
	return pooled.Conn(), pooled.Release, nil
}

// Borrow takes a connection of the pool. If ctx ends before there is one, the error says how many are in use.
func Borrow(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	began := time.Now()
	conn, err := pool.Acquire(ctx)
	return conn, noneFree(ctx, err, began, pool)
}

func noneFree(ctx context.Context, err error, began time.Time, pool *pgxpool.Pool) error {
	if err == nil {
		return nil
	}
	stat := pool.Stat()
	return failure.OfPool(ctx, err, began, int(stat.AcquiredConns()), int(stat.MaxConns()))
}

// Valueless is a context without its values, as the statements of several calls have one: a hook of the pool that wants
// a call's values, and refuses a connection without them, must not decide for others.
type Valueless struct{ context.Context }

// Value has none.
func (Valueless) Value(any) any { return nil }

// repeat lends f a connection, and repeats f if the server undid its work for a passing reason.
func repeat(ctx context.Context, lend lends, f func(*pgx.Conn) error) error {
	for attempt := 1; ; attempt++ {
		conn, give, err := lend(ctx)
		if err != nil {
			return &coalesce.NotSentError{Err: err}
		}
		err = f(conn)
		give()
		if !protocol.Transient(err) || attempt == attempts || !pause.For(ctx, time.Duration(attempt)*time.Millisecond) {
			return err
		}
	}
}
