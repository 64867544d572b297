package fencedstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// sqlDatabase is a pool of database/sql, with any driver for PostgreSQL.
type sqlDatabase struct {
	db      *sql.DB
	options pgx.TxOptions
}

func (d sqlDatabase) lend(ctx context.Context) (connection, error) {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &sqlConn{conn: conn, options: d.options}, nil
}

func (d sqlDatabase) idle() int { return d.db.Stats().Idle }

// look asks in a transaction that writes, so its COMMIT waits for whatever the write's did. It returns in time whatever
// the driver does: what goes on without it gives its connection back by itself.
func (d sqlDatabase) look(ctx context.Context, r Receipt) (committed bool, err error) {
	type answer struct {
		committed bool
		err       error
	}
	answered := make(chan answer, 1)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		committed, err := d.ask(ctx, r)
		answered <- answer{committed, err}
	}()
	if !inTime(ctx, finished, func() {}) {
		return false, ctx.Err()
	}
	a := <-answered
	return a.committed, a.err
}

func (d sqlDatabase) ask(ctx context.Context, r Receipt) (committed bool, err error) {
	lent, err := d.lend(ctx)
	if err != nil {
		return false, err
	}
	c := lent.(*sqlConn)
	defer c.giveBack()
	_ = c.unconfirmed()
	c.options = lookOptions
	if err = c.beginTx(ctx); err == nil {
		_, err = c.tx.ExecContext(ctx, setLockTimeout, lookWait())
	}
	if err == nil {
		err = c.tx.QueryRowContext(ctx, protocol.Outcome(r.Schema), r.ID.String(), r.Write.String()).Scan(&committed)
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
	conn    *sql.Conn
	back    bool // it was given back
	dead    bool
	options pgx.TxOptions
	tx      *sql.Tx
	end     context.CancelFunc // ends the transaction's context
	hanging <-chan struct{}    // closed when a call returns that was given up
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
func (c *sqlConn) beginTx(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	tx, err := c.conn.BeginTx(life, &sql.TxOptions{Isolation: isolation[c.options.IsoLevel]})
	c.tx, c.end = tx, end
	if err == nil && c.options.AccessMode == pgx.ReadWrite {
		_, err = tx.ExecContext(ctx, "SET TRANSACTION READ WRITE")
	}
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	return err
}

// begin sends BEGIN, and then the opening.
func (c *sqlConn) begin(ctx context.Context, o opening, r Receipt) error {
	err := c.beginTx(ctx)
	if err == nil {
		_, err = o.read(c.tx.QueryRowContext(ctx, o.sql, o.arguments(&r)...))
	}
	if err == nil {
		return nil
	}
	c.dead = c.dead || saysClosed(err)
	c.rollback(ctx)
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// commit sends the last check, and then COMMIT.
func (c *sqlConn) commit(ctx context.Context, o opening) (sent bool, err error) {
	_, err = c.tx.ExecContext(ctx, protocol.Seal(o.schema()), arrayText(o.resources()))
	if errors.Is(err, sql.ErrTxDone) {
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

func (c *sqlConn) rollback(ctx context.Context) {
	if c.end == nil {
		return
	}
	defer c.end()
	if c.tx == nil || c.hanging != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollingBack)
	defer cancel()
	if err := c.within(ctx, c.tx.Rollback); err != nil && !errors.Is(err, sql.ErrTxDone) {
		c.dead = true
	}
}

// within calls f and returns its error. When ctx ends it ends the transaction's context, which makes drivers give up. A
// driver that does not heed contexts, as lib/pq where nobody answers, goes on in a goroutine of its own and keeps the
// connection until the operating system gives that up.
func (c *sqlConn) within(ctx context.Context, f func() error) error {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
	}()
	if !inTime(ctx, done, c.end) {
		c.hanging, c.dead = done, true
		return ctx.Err()
	}
	return err
}

// inTime waits until done, or for a little longer than ctx, at whose end it gives up. False says that it is not done.
func inTime(ctx context.Context, done <-chan struct{}, giveUp func()) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	giveUp()
	timer := time.NewTimer(rollingBack)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// raw calls f with what the driver has for the connection.
func (c *sqlConn) raw(f func(driverConn any)) {
	if c.hanging == nil && !c.back && c.conn.Raw(func(driverConn any) error { f(driverConn); return nil }) != nil {
		c.dead = true
	}
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

func (c *sqlConn) giveBack() {
	if c.back {
		return
	}
	_ = c.isDead()
	c.back = true
	if c.end != nil {
		c.end()
	}
	if c.hanging == nil {
		_ = c.conn.Close() // to the pool
		return
	}
	go func() { // the call that hangs has the connection
		<-c.hanging
		_ = c.conn.Close()
	}()
}
