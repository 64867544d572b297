package listener

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
)

// Conn is a connection that listens. Only one goroutine uses it.
type Conn interface {
	Subscribe(ctx context.Context, channel string) error
	Unsubscribe(ctx context.Context, channel string) error
	Next(ctx context.Context) (channel, payload string, err error)
	Close()
}

// ErrQuiet: no notification came within the given time; the connection is still good.
var ErrQuiet = errors.New("nothing was heard")

// ErrDeaf: the connection works, but brings no notifications.
var ErrDeaf = errors.New("the connection brings no notifications, perhaps because of a pooler: connect to the server itself (WithListenConfig)")

var (
	// errPooled: the connection does not go to the server itself.
	errPooled = fmt.Errorf("%w: another process answers than the one it was connected to", ErrDeaf)
	// errUnheard: a notification that was sent on another connection did not arrive.
	errUnheard = fmt.Errorf("%w: a notification to itself did not arrive", ErrDeaf)
)

// Open returns a connection that listens: to the server that direct names or, if that is nil, the one that connect
// makes.
func Open(ctx context.Context, direct *pgx.ConnConfig, connect func(context.Context) (*pgx.Conn, error)) (Conn, error) {
	if direct != nil {
		config := direct.Copy()
		argument.NameApplication(config.RuntimeParams)
		conn, err := pgx.ConnectConfig(ctx, config)
		return pgConn{conn}, err
	}
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	// Behind a pooler LISTEN would apply to a connection that others use, and we would hear nothing.
	var backend uint32
	if err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&backend); err != nil || backend != conn.PgConn().PID() {
		pgConn{conn}.Close()
		return nil, errors.Join(errPooled, err)
	}
	return pgConn{conn}, nil
}

type pgConn struct{ conn *pgx.Conn }

func (c pgConn) Subscribe(ctx context.Context, channel string) error {
	_, err := c.conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
	return err
}

func (c pgConn) Unsubscribe(ctx context.Context, channel string) error {
	_, err := c.conn.Exec(ctx, "UNLISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
	return err
}

func (c pgConn) Next(ctx context.Context) (channel, payload string, err error) {
	n, err := c.conn.WaitForNotification(ctx)
	if err != nil {
		if ctx.Err() != nil && !c.conn.IsClosed() {
			return "", "", ErrQuiet
		}
		return "", "", err
	}
	return n.Channel, n.Payload, nil
}

// Goodbye limits the polite end of a connection that is no longer needed. It is closed in any case.
const Goodbye = 100 * time.Millisecond

func (c pgConn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), Goodbye) //nolint:forbidigo // says goodbye after everything else ended
	defer cancel()
	_ = c.conn.Close(ctx)
}
