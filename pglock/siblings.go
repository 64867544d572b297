package pglock

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// What sibling packages, and only they, need from this one.
func init() {
	hooks.ErrorFromSQL = func(err error, name string, token int64) error {
		return errorFromSQL(err, name, Token(token))
	}
	hooks.Start = func(ctx context.Context, queries *protocol.Queries, query func(context.Context, protocol.Step) error,
		schema string) (int, error) {
		found, err := start(ctx, queries, query, schema)
		return found.version, err
	}
	hooks.Passed = func(lease any, p *hooks.Passage) *hooks.Passage {
		l := lease.(*Lease)
		if p != nil {
			l.passed.Store(p)
		}
		return l.passed.Load()
	}
	hooks.Observe = func(ctx context.Context, lease any, what hooks.Observed) { lease.(*Lease).write(ctx, what) }
	hooks.Export = func(lease any) hooks.Grant {
		g := lease.(*Lease).Export()
		return hooks.Grant{ID: g.ID, DatabaseID: g.DatabaseID, Schema: g.Schema, Grace: lease.(*Lease).grace}
	}
	hooks.Home = func(lease any) hooks.Grant {
		home := hooks.Export(lease)
		home.ID, home.Grace = uuid.Nil, 0
		return home
	}
	hooks.Want = func(client any, name string, opts any) (hooks.Wanted, error) {
		r, err := client.(*Client).newRequest(name, opts.([]AcquireOption))
		mode := Mode(r.Mode)
		return hooks.Wanted{Exclusive: mode == ModeExclusive, Shared: mode == ModeShared, MaxWait: r.maxWait}, err
	}
	hooks.Connect = func(ctx context.Context, client any) (*pgx.Conn, error) {
		c := client.(*Client)
		pg, ok := c.backend.(database)
		if !ok {
			return nil, errNoDatabase
		}
		return pg.Connect(ctx)
	}
	hooks.Blockers = func(
		ctx context.Context, lease any, pid int, resources []string,
	) (all []protocol.Blocker, err error) {
		c := lease.(*Lease).client
		pg, ok := c.backend.(database)
		if !ok {
			return nil, errNoDatabase
		}
		err = pg.Aside(ctx, protocol.Blockers(c.config.schema, pid, resources, &all))
		return all, err
	}
	hooks.ConnectAs = func(ctx context.Context, lease any) (*pgx.Conn, error) {
		return hooks.Connect(ctx, lease.(*Lease).client)
	}
}

var errNoDatabase = errors.New("the client has no database")
