// Package guest makes a schema of pglock in somebody else's database, and removes it without what was there before.
package guest

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/migrations"
)

// MakeSchema makes a schema that nobody has. drop removes it, also where MakeSchema has failed; nil: nothing was made.
//
// The roles pglock_user and pglock_admin belong to the whole server. They go with the schema if it brought them,
// and no other schema uses them by then. If one of them was there before, both stay: it may have members.
func MakeSchema(ctx context.Context, url, name string) (drop func(context.Context) error, err error) {
	var roles bool
	err = connected(ctx, url, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname IN ('pglock_user', "+
			"'pglock_admin'))").Scan(&roles)
	})
	if err != nil {
		return nil, err
	}
	drop = func(ctx context.Context) error {
		if !roles {
			return migrations.Down(ctx, url, migrations.WithSchema(name))
		}
		return connected(ctx, url, func(conn *pgx.Conn) error { // Down would drop the roles, too
			_, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
			return err
		})
	}
	return drop, migrations.Up(ctx, url, migrations.WithSchema(name))
}

func connected(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost
	return f(conn)
}
