package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

// Every test process has a number. The names of its databases begin with it. The process holds it by an advisory lock
// of this class, on a connection with no other use, for as long as it lives.
const (
	namePrefix = "pglock_test_"
	lockClass  = 0x70676c6b
)

func (c *cluster) name(of any) string { return fmt.Sprintf("%s%d_%v", namePrefix, c.id, of) }

// connect opens the connections that make and drop databases, and shows other users of the server that this process
// is alive. It also drops what killed processes have left. Others may be doing the same, and no test depends on it,
// so its failures are ignored.
func (c *cluster) connect(ctx context.Context) (err error) {
	if c.admin, err = pgxpool.New(c.ctx, c.server.URL()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if c.presence, err = pgx.Connect(ctx, c.server.URL()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if c.old, err = isOld(c.presence.PgConn().ParameterStatus("server_version")); err != nil {
		return err
	}
	for alone := false; !alone; {
		c.id = rand.Int32()
		if err := c.presence.QueryRow(ctx, "select pg_try_advisory_lock($1, $2)", lockClass,
			c.id).Scan(&alone); err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
	}
	rows, _ := c.presence.Query(ctx,
		`select datname from pg_database d where datname ~ ('^' || $1 || '[0-9]+_([0-9]+|template)$')
		and not exists (select from pg_locks where locktype = 'advisory' and classid = $2 and objsubid = 2
			and objid::text = split_part(datname, '_', 3))
		and not exists (select from pg_stat_activity a where a.datname = d.datname)`, namePrefix, lockClass)
	abandoned, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range abandoned {
		_, _ = c.presence.Exec(ctx, "drop database if exists "+quote(name))
	}
	return nil
}

// isOld says of a version whether it lacks what came after the oldest that pglock works with. It fails for one that is
// older than that.
func isOld(version string) (bool, error) {
	number, _, _ := strings.Cut(version, ".")
	major, err := strconv.Atoi(number[:len(number)-len(strings.TrimLeft(number, "0123456789"))])
	if err != nil || major < pgprograms.MinMajor {
		return false, fmt.Errorf("pgtest: the server is PostgreSQL %s; pglock needs %d or newer", version,
			pgprograms.MinMajor)
	}
	return major == pgprograms.MinMajor, nil
}

// disconnect drops the template, and what panicking tests could not drop; on a server of our own everything goes with
// it.
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
