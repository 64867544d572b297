package pglock

import (
	"context"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// What the packages beside this one need of it, and nobody else.
func init() {
	hooks.ErrorFromSQL = func(err error, name string, token int64) error { return errorFromSQL(err, name, Token(token)) }
	hooks.Start = func(ctx context.Context, queries *protocol.Queries, query func(context.Context, protocol.Step) error, schema string) error {
		_, err := start(ctx, queries, query, schema)
		return err
	}
	home := func(lease any) hooks.Grant {
		g := lease.(*Lease).shown()
		return hooks.Grant{DatabaseID: g.DatabaseID, Schema: g.Schema}
	}
	hooks.Home = home
	hooks.Passed = func(lease any, p *hooks.Passage) *hooks.Passage {
		l := lease.(*Lease)
		if p != nil {
			l.passed.Store(p)
		}
		return l.passed.Load()
	}
	hooks.Export = func(lease any) hooks.Grant {
		g, _ := lease.(*Lease).Export()
		shown := home(lease)
		shown.ID = g.ID
		return shown
	}
}
