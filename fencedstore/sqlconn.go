package fencedstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// sqlDatabase is a pool of database/sql, with any driver for PostgreSQL.
type sqlDatabase struct{ db *sql.DB }

func (d sqlDatabase) lend(ctx context.Context) (connection, error) {
	began := time.Now()
	conn, err := d.db.Conn(ctx)
	if err != nil {
		stat := d.db.Stats()
		return nil, failure.OfPool(ctx, err, began, stat.InUse, stat.MaxOpenConnections)
	}
	c := &sqlConn{conn: conn, end: func() {}}
	c.raw(func(driverConn any) { c.driver = driverConn })
	return c, nil
}

func (d sqlDatabase) idle() int { return d.db.Stats().Idle }

// lookBy asks over a connection of the lease's client: what kept the COMMIT from being answered may also keep a driver
// that does not heed contexts from connecting.
func (d sqlDatabase) lookBy(lease *pglock.Lease) look {
	return func(ctx context.Context, r Receipt) (committed bool, err error) {
		conn, err := hooks.Of(lease).Connect(ctx)
		if err != nil {
			return false, err
		}
		defer func() {
			ctx, cancel := pause.Afterwards(ctx, rollingBack)
			defer cancel()
			_ = conn.Close(ctx)
		}()
		return lookOn(ctx, conn, r)
	}
}

// look asks in a transaction that writes, so its COMMIT waits for whatever the write's did.
func (d sqlDatabase) look(ctx context.Context, r Receipt) (committed bool, err error) {
	lent, err := d.lend(ctx)
	if err != nil {
		return false, err
	}
	c := lent.(*sqlConn)
	defer c.giveBack(ctx, false)
	_ = c.unconfirmed()
	if err = c.beginTx(ctx, lookOptions); err == nil {
		err = c.within(ctx, func() error {
			if _, err := c.tx.ExecContext(ctx, setLockTimeout, lookWait()); err != nil {
				return err
			}
			return c.tx.QueryRowContext(ctx, protocol.Outcome(r.Schema), r.ID.String(), r.Write.String(),
				r.DatabaseID.String()).Scan(&committed)
		})
	}
	if err != nil {
		c.rollback(ctx)
		return false, err
	}
	if err := c.within(ctx, c.tx.Commit); err != nil {
		return false, err
	}
	if c.unconfirmed() {
		return false, errUnconfirmed
	}
	return committed, nil
}

// sqlConn is a connection of such a pool.
type sqlConn struct {
	conn   *sql.Conn
	driver any  // what the driver has for it
	dead   bool // it has ended, or must not be used again
	tx     *sql.Tx
	end    context.CancelFunc // ends the transaction's context
}

func inSQL(fn func(context.Context, *sql.Tx) error) work {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context, c connection) error { return fn(ctx, c.(*sqlConn).tx) }
}

// isolation is what database/sql calls an isolation level.
var isolation = map[pgx.TxIsoLevel]sql.IsolationLevel{
	"":                  sql.LevelDefault,
	pgx.ReadUncommitted: sql.LevelReadUncommitted,
	pgx.ReadCommitted:   sql.LevelReadCommitted,
	pgx.RepeatableRead:  sql.LevelRepeatableRead,
	pgx.Serializable:    sql.LevelSerializable,
}

// beginTx begins a transaction whose context is its own: database/sql would end the transaction behind our back
// together with ctx.
func (c *sqlConn) beginTx(ctx context.Context, options pgx.TxOptions) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	c.end = end
	err := c.within(ctx, func() (err error) {
		c.tx, err = c.conn.BeginTx(life, &sql.TxOptions{Isolation: isolation[options.IsoLevel]})
		if err == nil && options.AccessMode == pgx.ReadWrite {
			_, err = c.tx.ExecContext(ctx, "SET TRANSACTION READ WRITE")
		}
		return err
	})
	return cmp.Or(err, ctx.Err())
}

// begin sends BEGIN, and then the opening.
func (c *sqlConn) begin(ctx context.Context, o opening, r Receipt) (p passed, err error) {
	err = c.beginTx(ctx, o.transactionOp)
	if err == nil {
		err = cmp.Or(c.within(ctx, func() (err error) {
			p, err = o.read(c.tx.QueryRowContext(ctx, o.sql, o.arguments(&r)...))
			return err
		}), ctx.Err())
	}
	if err != nil {
		c.dead = c.dead || saysClosed(err)
		c.rollback(ctx)
	}
	return p, err
}

// commit sends the last check, and then COMMIT.
func (c *sqlConn) commit(ctx context.Context, o opening) (sent bool, err error) {
	err = c.within(ctx, func() error {
		_, err := c.tx.ExecContext(ctx, protocol.Seal(o.schema()), arrayText(o.resources()))
		return ofSeal(err)
	})
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
		return false, errEnded
	}
	if err != nil {
		c.dead = c.dead || saysClosed(err)
		c.rollback(ctx)
		return false, err
	}
	err = c.within(ctx, c.tx.Commit)
	c.dead = c.dead || err != nil && saysClosed(err)
	c.end()
	return true, err
}

func (c *sqlConn) rollback(ctx context.Context) (ended bool) {
	defer c.end()
	if c.tx == nil {
		return false
	}
	ctx, cancel := pause.Afterwards(ctx, rollingBack)
	defer cancel()
	err := c.within(ctx, c.tx.Rollback)
	ended = errors.Is(err, sql.ErrTxDone)
	c.dead = c.dead || err != nil && !ended
	return ended
}

// heeding is how long a driver may take to heed the end of a context.
const heeding = 50 * time.Millisecond

// within calls f, which returns soon after ctx has ended: first the end of the transaction's context makes drivers give
// up. Under a driver that does not heed contexts, as lib/pq where nobody answers, the connection is then closed.
func (c *sqlConn) within(ctx context.Context, f func() error) error {
	returned, watched := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(watched)
		c.end()
		timer := time.NewTimer(heeding)
		defer timer.Stop()
		select {
		case <-returned:
		case <-timer.C:
			c.cut()
		}
	})
	err := f()
	close(returned)
	if !stop() {
		<-watched
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// cut closes the connection while the driver uses it.
func (c *sqlConn) cut() {
	c.dead = true
	switch d := c.driver.(type) {
	case interface{ Conn() *pgx.Conn }:
		_ = d.Conn().PgConn().Conn().Close()
	case driver.Conn:
		_ = d.Close()
	}
}

// raw calls f with what the driver has for the connection.
func (c *sqlConn) raw(f func(driverConn any)) {
	if throughRaw(c.conn, func(driverConn any) error { f(driverConn); return nil }) != nil {
		c.dead = true
	}
}

// throughRaw is conn.Raw. That panics where database/sql closes the connection at this moment, because a transaction
// whose context has ended could not be rolled back: it finds the connection open, and then no connection. The mutex
// that the panic leaves locked belongs to the closed connection: nobody takes it any more.
func throughRaw(conn *sql.Conn, f func(driverConn any) error) (err error) {
	called := false
	defer func() {
		if called {
			return // a panic of f goes on
		}
		if recover() != nil {
			err = driver.ErrBadConn
		}
	}()
	return conn.Raw(func(driverConn any) error {
		called = true
		return f(driverConn)
	})
}

// unconfirmed can be seen on connections of pgx alone.
func (c *sqlConn) unconfirmed() (is bool) {
	c.raw(func(driverConn any) {
		if conn, ok := driverConn.(interface{ Conn() *pgx.Conn }); ok && !conn.Conn().IsClosed() {
			is = protocol.Unconfirmed(conn.Conn())
		}
	})
	return is
}

func (c *sqlConn) isDead() bool {
	c.raw(func(driverConn any) {
		conn, isPgx := driverConn.(interface{ Conn() *pgx.Conn })
		valid, says := driverConn.(driver.Validator)
		c.dead = c.dead || isPgx && conn.Conn().IsClosed() || says && !valid.IsValid()
	})
	return c.dead
}

func (c *sqlConn) giveBack(_ context.Context, spoilt bool) {
	isDead := c.isDead()
	c.end()
	if isDead || spoilt { // database/sql closes a connection of which its driver says so
		_ = throughRaw(c.conn, func(any) error { return driver.ErrBadConn })
	}
	_ = c.conn.Close()
}
