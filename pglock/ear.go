package pglock

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// pgEar listens on a connection of its own.
type pgEar struct{ conn *pgx.Conn }

func (s *pgStore) listen(ctx context.Context) (ear, error) {
	if s.ears == nil {
		conn, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}
		// Behind a pooler LISTEN would stay with a connection that others use, and we would hear nothing.
		var backend uint32
		if err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&backend); err != nil || backend != conn.PgConn().PID() {
			farewell(conn)
			return nil, errors.Join(errPooled, err)
		}
		return pgEar{conn}, nil
	}
	conn, err := pgx.ConnectConfig(ctx, s.ears.Copy())
	return pgEar{conn}, err
}

func (e pgEar) subscribe(ctx context.Context, channel string) error {
	_, err := e.conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
	return err
}

func (e pgEar) unsubscribe(ctx context.Context, channel string) error {
	_, err := e.conn.Exec(ctx, "UNLISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
	return err
}

func (e pgEar) next(ctx context.Context) (channel, payload string, err error) {
	n, err := e.conn.WaitForNotification(ctx)
	if err != nil {
		if ctx.Err() != nil && !e.conn.IsClosed() {
			return "", "", errQuiet
		}
		return "", "", err
	}
	return n.Channel, n.Payload, nil
}

func (e pgEar) close() { farewell(e.conn) }

// errPooled: the connection is not to the server itself.
var errPooled = errors.New("a pooler is between: WithListenConfig names the server itself")

// errQuiet: nothing was heard for as long as one was willing to listen; the connection is as good as before.
var errQuiet = errors.New("nothing was heard")
