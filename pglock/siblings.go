package pglock

import (
	"context"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// What sibling packages, and only they, need from this one.
func init() {
	hooks.ErrorFromSQL = func(err error, name string, token int64) error { return errorFromSQL(err, name, Token(token)) }
	hooks.Start = func(ctx context.Context, queries *protocol.Queries, query func(context.Context, protocol.Step) error, schema string) (int, error) {
		found, err := start(ctx, queries, query, schema)
		return found.version, err
	}
	home := func(lease any) hooks.Grant {
		g := lease.(*Lease).shown()
		return hooks.Grant{DatabaseID: g.DatabaseID, Schema: g.Schema}
	}
	hooks.Home = home
	hooks.Export = func(lease any) hooks.Grant {
		g, _ := lease.(*Lease).Export()
		shown := home(lease)
		shown.ID = g.ID
		return shown
	}
}
