package fencedstore

import (
	"cmp"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// pgxDatabase is a pool of pgx.
type pgxDatabase struct{ pool *pgxpool.Pool }

func (d pgxDatabase) lend(ctx context.Context) (connection, error) {
	conn, err := server.Borrow(ctx, d.pool)
	if err != nil {
		return nil, err
	}
	return &pgxConn{conn: conn}, nil
}

func (d pgxDatabase) idle() int { return 0 } // the pool asks its connections before it lends them

func (d pgxDatabase) look(ctx context.Context, r Receipt) (committed bool, err error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	return lookOn(ctx, conn.Conn(), r)
}

func (d pgxDatabase) lookBy(*pglock.Lease) look { return d.look }

// lookOn asks in a transaction that writes, so its COMMIT waits for whatever the write's did.
func lookOn(ctx context.Context, conn *pgx.Conn, r Receipt) (committed bool, err error) {
	_ = protocol.Unconfirmed(conn)
	err = pgx.BeginTxFunc(ctx, conn, lookOptions, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setLockTimeout, lookWait()); err != nil {
			return err
		}
		return tx.QueryRow(ctx, protocol.Outcome(r.Schema), r.ID.String(), r.Write.String(),
			r.DatabaseID.String()).Scan(&committed)
	})
	if err == nil && protocol.Unconfirmed(conn) {
		err = errUnconfirmed
	}
	return committed, err
}

// pgxConn is a connection of such a pool.
type pgxConn struct {
	conn *pgxpool.Conn
	tx   pgx.Tx
}

func inPgx(fn func(context.Context, pgx.Tx) error) work {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context, c connection) error { return fn(ctx, c.(*pgxConn).tx) }
}

// begin sends BEGIN and the opening together.
func (c *pgxConn) begin(ctx context.Context, o opening, r Receipt) (p passed, err error) {
	options := o.transactionOp
	options.CommitQuery = protocol.SealOf(o.schema(), o.resources()) + "; COMMIT"
	batch := &pgx.Batch{}
	batch.BeginTx(options)
	batch.Queue(o.sql, o.arguments(&r)...)
	results := c.conn.Conn().SendBatch(ctx, batch)
	c.tx = results.Tx()
	_, err = results.Exec()
	if err == nil {
		p, err = o.read(results.QueryRow())
	}
	err = cmp.Or(err, results.Close())
	if err != nil {
		c.rollback(ctx)
	}
	return p, err
}

// commit sends the last check and COMMIT together.
func (c *pgxConn) commit(ctx context.Context, o opening) (sent bool, err error) {
	batch := &pgx.Batch{}
	batch.Queue(protocol.Seal(o.schema()), o.resources())
	batch.Queue("COMMIT")
	results := c.tx.SendBatch(ctx, batch)
	_, err = results.Exec()
	sent = !protocol.Refused(err) // else the server has skipped the COMMIT
	if err = ofSeal(err); err == nil {
		_, err = results.Exec()
	}
	err = cmp.Or(err, results.Close())
	if errors.Is(err, pgx.ErrTxClosed) { // a Commit in the callback has sealed and committed, a Rollback has not
		return false, errEnded
	}
	if err != nil && c.tx.Conn().PgConn().TxStatus() != 'I' {
		c.rollback(ctx)
	}
	return sent, err
}

func (c *pgxConn) rollback(ctx context.Context) (ended bool) {
	if c.tx == nil {
		return false
	}
	ended = !c.isDead() && c.tx.Conn().PgConn().TxStatus() == 'I'
	ctx, cancel := pause.Afterwards(ctx, rollingBack)
	defer cancel()
	err := c.tx.Rollback(ctx)
	if errors.Is(err, pgx.ErrTxClosed) {
		return true
	}
	if err != nil {
		_ = c.tx.Conn().Close(ctx)
	}
	return ended
}

func (c *pgxConn) unconfirmed() bool { return protocol.Unconfirmed(c.conn.Conn()) }

func (c *pgxConn) isDead() bool { return c.conn.Conn().IsClosed() }

func (c *pgxConn) giveBack(ctx context.Context, spoilt bool) {
	if spoilt {
		ctx, cancel := pause.Afterwards(ctx, rollingBack)
		defer cancel()
		_ = c.conn.Conn().Close(ctx)
	}
	c.conn.Release()
}
