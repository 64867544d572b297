package cli

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/lockadmin"
)

// Where is the server, database and schema of a command. Of several servers it has all until one has answered.
type Where = lockadmin.Place

// Target is where a command connects to: first all servers that it may try, then the one that has answered.
type Target struct {
	Where
	answered atomic.Pointer[string] // one of several servers
}

// Now is where the command is, as far as it knows.
func (t *Target) Now() Where {
	w := t.Where
	if one := t.answered.Load(); one != nil {
		w.Server = *one
	}
	return w
}

// targetOf also changes the configuration: it notes which of several servers has answered.
func targetOf(c *pgx.ConnConfig, schema string) *Target {
	t := &Target{Where: Where{Database: server.Database(c), Schema: schema}}
	servers := server.Addresses(c)
	t.Server = strings.Join(servers, ", ")
	if len(servers) > 1 {
		next := c.AfterConnect
		c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			one := conn.Conn().RemoteAddr().String()
			t.answered.Store(&one)
			if next != nil {
				return next(ctx, conn)
			}
			return nil
		}
	}
	return t
}
