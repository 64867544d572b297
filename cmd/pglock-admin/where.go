package main

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// where is the server, database and schema of a command, without a password.
type where struct {
	Server   string `json:"server"` // host:port or the path of a socket; several until one has answered
	Database string `json:"database"`
	Schema   string `json:"schema"`
}

func (w where) String() string {
	s := printable(w.Server) + ", database " + named(w.Database)
	if w.Schema != defaultSchema {
		s += ", schema " + named(w.Schema)
	}
	return s
}

// target is where a command connects to: first all servers that it may try, then the one that has answered.
type target struct {
	where
	answered atomic.Pointer[string] // one of several servers
}

func (t *target) now() where {
	w := t.where
	if server := t.answered.Load(); server != nil {
		w.Server = *server
	}
	return w
}

// targetOf also changes the configuration: it notes which of several servers has answered.
func targetOf(c *pgx.ConnConfig, schema string) *target {
	t := &target{where: where{Database: c.Database, Schema: schema}}
	if t.Database == "" {
		t.Database = c.User // as the server does
	}
	servers := []string{address(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		if a := address(f.Host, f.Port); !slices.Contains(servers, a) { // pgx has the same server twice, with and without TLS
			servers = append(servers, a)
		}
	}
	t.Server = strings.Join(servers, ", ")
	if len(servers) > 1 {
		next := c.AfterConnect
		c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			server := conn.Conn().RemoteAddr().String()
			t.answered.Store(&server)
			if next != nil {
				return next(ctx, conn)
			}
			return nil
		}
	}
	return t
}

func address(host string, port uint16) string {
	network, path := pgconn.NetworkAddress(host, port)
	if network == "unix" {
		return path
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
