package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/pgserver"
)

// databaseTimeout bounds every single making and dropping of a database.
const databaseTimeout = 30 * time.Second

// pristine is the server's own template that nobody can be connected to.
const pristine = "template0"

// Every test process has a number. It begins the names of its databases, and is held by an advisory lock of this class for as
// long as the process lives, on a connection that nothing else uses.
const (
	namePrefix = "pglock_test_"
	lockClass  = 0x70676c6b
)

func (c *cluster) name(of any) string { return fmt.Sprintf("%s%d_%v", namePrefix, c.id, of) }

// connect opens the connections that make and drop databases, shows the other users of the server that this process lives,
// and drops what dead processes left, which were killed before they could: others may be doing the same, and it is no task of
// the tests, so its failures are not theirs.
func (c *cluster) connect(ctx context.Context) (err error) {
	if c.admin, err = pgxpool.New(c.ctx, c.server.URL()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if c.presence, err = pgx.Connect(ctx, c.server.URL()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	c.old = strings.HasPrefix(c.presence.PgConn().ParameterStatus("server_version"), "14")
	for alone := false; !alone; {
		c.id = rand.Int32()
		if err := c.presence.QueryRow(ctx, "select pg_try_advisory_lock($1, $2)", lockClass, c.id).Scan(&alone); err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
	}
	rows, _ := c.presence.Query(ctx, `select datname from pg_database d where datname ~ ('^' || $1 || '[0-9]+_([0-9]+|template)$')
		and not exists (select from pg_locks where locktype = 'advisory' and classid = $2 and objsubid = 2
			and objid::text = split_part(datname, '_', 3))
		and not exists (select from pg_stat_activity a where a.datname = d.datname)`, namePrefix, lockClass)
	abandoned, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range abandoned {
		_, _ = c.presence.Exec(ctx, "drop database if exists "+quote(name))
	}
	return nil
}

// disconnect drops what tests could not, having panicked, and the template; a server of our own goes with all that is in it.
func (c *cluster) disconnect() (err error) {
	if c.admin != nil {
		c.admin.Close()
	}
	if c.presence == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), databaseTimeout)
	defer cancel()
	if c.server.Kind() == pgserver.KindURL {
		rows, _ := c.presence.Query(ctx, "select datname from pg_database where starts_with(datname, $1)", c.name(""))
		names, collectErr := pgx.CollectRows(rows, pgx.RowTo[string])
		err = collectErr
		for _, name := range names {
			_, dropErr := c.presence.Exec(ctx, "drop database if exists "+quote(name)+" with (force)")
			err = errors.Join(err, dropErr)
		}
	}
	return errors.Join(err, c.presence.Close(ctx))
}

// make makes a database: a copy of the one that the package's migrations ran on, or an empty one.
func (c *cluster) make(ctx context.Context, name string, migrated bool) error {
	if !migrated || c.migrate == nil {
		return c.copy(ctx, pristine, name)
	}
	template := c.name("template")
	c.migrated.Do(func() { c.migrateErr = c.makeTemplate(template) })
	if c.migrateErr != nil {
		return fmt.Errorf("make the template: %w", c.migrateErr)
	}
	return c.copy(ctx, template, name)
}

// makeTemplate forbids connections to the template in the end, because a database cannot be copied while somebody is
// connected.
func (c *cluster) makeTemplate(name string) error {
	ctx, cancel := context.WithTimeout(c.ctx, databaseTimeout)
	defer cancel()
	err := c.copy(ctx, pristine, name)
	if err == nil {
		err = c.migrate(ctx, withDatabase(c.server.URL(), name))
	}
	if err == nil {
		_, err = c.admin.Exec(ctx, "alter database "+quote(name)+" allow_connections false")
	}
	if err == nil {
		_, err = c.admin.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
	}
	return err
}

// copy is refused while somebody is connected to the template, be it the server's own housekeeping, so that is tried again
// until ctx ends.
func (c *cluster) copy(ctx context.Context, template, name string) error {
	sql := "create database " + quote(name) + " template " + quote(template)
	if !c.old {
		sql += " strategy file_copy" // a throwaway server has no use for the copy in its log
	}
	for {
		_, err := c.admin.Exec(ctx, sql)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "55006" && ctx.Err() == nil {
			continue // object_in_use; the server itself waits five seconds first
		}
		return err
	}
}

func (c *cluster) drop(ctx context.Context, name string) error {
	_, err := c.admin.Exec(ctx, "drop database if exists "+quote(name)+" with (force)")
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// withDatabase replaces the database in a connection string of either form.
func withDatabase(connString, name string) string {
	u, err := url.Parse(connString)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return connString + " dbname=" + name // of a keyword that occurs twice the last one counts
	}
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	u.Path, u.RawPath = "/"+name, ""
	return u.String()
}
