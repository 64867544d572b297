package peer

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgxpool"
)

// MostConnections limits the pool of a process. A peer that holds a connection while it waits or holds (advisory
// locks) has one for each caller instead.
const MostConnections = 20

// poolSettings are those of peers that have a pool in forms of either kind.
func poolSettings() string {
	return fmt.Sprintf("pool of %d, of 1 where each process has one caller", MostConnections)
}

// pool opens a pool of so many connections, or as many as c says, whose statements are counted on the wire. Whatever
// asks the server counts once per statement: a pool, a batch, or a connection made as the pool makes its own.
func pool(ctx context.Context, c Config, counted *counter, connections int) (*pgxpool.Pool, error) {
	config, err := poolConfig(c, counted, connections)
	if err != nil {
		return nil, err
	}
	p, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := p.Ping(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func poolConfig(c Config, counted *counter, connections int) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(c.Address)
	if err != nil {
		return nil, err
	}
	if c.Connections > 0 {
		connections = c.Connections
	}
	config.MaxConns = int32(connections)
	config.MinConns = int32(min(connections, c.Callers)) // none is made while the clock runs
	config.ConnConfig.RuntimeParams["application_name"] = "bench"
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &statementConn{Conn: conn, counted: counted}, nil
	}
	return config, nil
}

// statementConn counts the messages of PostgreSQL's protocol that execute a statement: Execute and Query. A pool's
// check of an idle connection is only a comment, and does not count.
type statementConn struct {
	net.Conn
	counted *counter
	started bool   // the start-up message, which has no type, has passed
	header  []byte // of a message that was cut off in its header
	left    int    // of the body of the message that passes
	query   []byte // the begin of the body, if it is a Query
	isQuery bool
}

// pingQuery is what pgx sends as such a look.
const pingQuery = "-- ping"

func (c *statementConn) Write(b []byte) (int, error) {
	c.counted.add(c.statements(b))
	return c.Conn.Write(b)
}

// startUp is the version 3 of the protocol; other messages without a type ask for encryption or cancel.
const startUp = 3

func (c *statementConn) statements(b []byte) (n int64) {
	for len(b) > 0 {
		if c.left > 0 {
			passed := min(c.left, len(b))
			if c.isQuery {
				c.query = append(c.query, b[:min(passed, len(pingQuery)-len(c.query))]...)
			}
			c.left -= passed
			b = b[passed:]
			if c.left == 0 && c.isQuery {
				if string(c.query) != pingQuery {
					n++
				}
				c.isQuery, c.query = false, c.query[:0]
			}
			continue
		}
		size := 5
		if !c.started {
			size = 8
		}
		missing := min(size-len(c.header), len(b))
		c.header = append(c.header, b[:missing]...)
		b = b[missing:]
		if len(c.header) < size {
			return n
		}
		if c.started {
			c.left = int(binary.BigEndian.Uint32(c.header[1:])) - 4
			switch c.header[0] {
			case 'E':
				n++
			case 'Q': // counted when it has passed
				c.isQuery = true
			}
		} else {
			c.left = int(binary.BigEndian.Uint32(c.header)) - 8
			c.started = binary.BigEndian.Uint16(c.header[4:]) == startUp
		}
		c.header = c.header[:0]
	}
	return n
}
