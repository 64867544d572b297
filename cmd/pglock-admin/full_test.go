package main

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// When all connections are in use, those for whom some are reserved can still look, as the advice says.
func TestWhoeverMayConnectToAFullServerIsTold(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, map[string]string{"max_connections": "9", "superuser_reserved_connections": "3",
		"max_wal_senders": "0"})
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	all := []string{"CREATE ROLE app LOGIN PASSWORD 'secret'"}
	sixteen := conn.PgConn().ParameterStatus("server_version") >= "16"
	if sixteen {
		all = append(all, "CREATE ROLE oncall LOGIN PASSWORD 'secret' IN ROLE pglock_user, pg_use_reserved_connections",
			"ALTER SYSTEM SET reserved_connections = 2")
	}
	for _, sql := range all {
		if state := written(t, conn, sql); state != "" {
			t.Fatal(state)
		}
	}
	_ = conn.Close(t.Context())
	must.Do(t, server.Restart(t.Context()))
	app := as(t, server.URL(), "app", "postgres")
	for {
		one, err := pgx.Connect(t.Context(), app)
		if cli.StateOf(err) == "53300" {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		defer one.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is lost
	}
	in(t, app, "list").want(t, cli.ExitUnreachable, "(SQLSTATE 53300)", "try: the same command again in a moment. Who "+
		"has the connections only a connection can tell: some are reserved for superusers", "from PostgreSQL 16 on")
	in(t, server.URL(), "list").want(t, cli.ExitOK)
	if sixteen {
		in(t, as(t, server.URL(), "oncall", "postgres"), "list").want(t, cli.ExitOK)
	}
}
