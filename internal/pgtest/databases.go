package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/pgserver"
)

// databaseTimeout bounds every single making and dropping of a database.
const databaseTimeout = 30 * time.Second

// pristine is the server's own template that nobody can be connected to.
const pristine = "template0"

func (c *cluster) urlOf(database string) string { return withDatabase(c.server.URL(), database) }

// migrated makes the template on first use. Connections to it are forbidden
// afterwards, because a database cannot be copied while somebody is connected.
func (c *cluster) migrated() (string, error) {
	if c.options.template == nil {
		return pristine, nil
	}
	name := c.databases.template()
	c.template.Do(func() {
		ctx, cancel := context.WithTimeout(c.ctx, databaseTimeout)
		defer cancel()
		if c.templateErr = c.create(ctx, name, pristine); c.templateErr != nil {
			return
		}
		if err := c.options.template(ctx, c.urlOf(name)); err != nil {
			c.templateErr = fmt.Errorf("pgtest: migrate the template: %w", err)
			return
		}
		c.templateErr = c.admin(ctx, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "alter database "+quote(name)+" allow_connections false")
			if err != nil {
				return err
			}
			_, err = conn.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
			return err
		})
	})
	return name, c.templateErr
}

func (c *cluster) create(ctx context.Context, name, template string) error {
	return c.admin(ctx, func(conn *pgx.Conn) error {
		sql := "create database " + quote(name) + " template " + quote(template)
		if version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), "."); version != "14" {
			sql += " strategy file_copy" // a throwaway server has no use for the copy in its log
		}
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

func (c *cluster) drop(ctx context.Context, name string) error {
	return c.admin(ctx, func(conn *pgx.Conn) error { return drop(ctx, conn, name) })
}

func drop(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "drop database if exists "+quote(name)+" with (force)")
	return err
}

// dropDatabases drops what tests could not, having panicked, and the template.
// A server of our own goes with all that is in it.
func (c *cluster) dropDatabases() error {
	if c.server.Kind() != pgserver.KindURL {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), databaseTimeout)
	defer cancel()
	return c.admin(ctx, func(conn *pgx.Conn) error {
		names, err := databases(ctx, conn)
		if err != nil {
			return err
		}
		var errs []error
		for _, name := range names {
			if prefix, _, ok := parseName(name); ok && prefix == c.databases.prefix {
				errs = append(errs, drop(ctx, conn, name))
			}
		}
		return errors.Join(errs...)
	})
}

func databases(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, "select datname from pg_database where datname like 'pglock\\_test\\_%'")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// admin runs do on a connection of its own to the server's first database. A
// copy is refused while somebody is connected to the template, be it the
// server's own housekeeping, so that is tried again until ctx ends.
func (c *cluster) admin(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, c.server.URL())
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		err := do(conn)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "55006" && ctx.Err() == nil {
			continue // object_in_use; the server itself waits five seconds first
		}
		if err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
		return nil
	}
}
