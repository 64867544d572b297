package pgtest

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// abandonedAfter is the age at which databases may be left-overs of a process
// that was killed before it could drop them.
const abandonedAfter = time.Hour

// signIn shows the other users of somebody else's server that this process
// lives, by a connection under the common name of its databases, which stays
// open until the cluster is closed. Then it drops what dead processes left.
func (c *cluster) signIn(ctx context.Context, now time.Time) error {
	config, err := pgx.ParseConfig(c.server.URL())
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	config.RuntimeParams["application_name"] = c.databases.prefix
	if c.presence, err = pgx.ConnectConfig(ctx, config); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	dropAbandoned(ctx, c.presence, now)
	return nil
}

// dropAbandoned drops old databases with neither a connection nor a living
// process. Others may be doing the same, and it is no task of the tests, so
// its failures are not theirs.
func dropAbandoned(ctx context.Context, conn *pgx.Conn, now time.Time) {
	names, err := databases(ctx, conn)
	if err != nil {
		return
	}
	for _, name := range names {
		prefix, made, ok := parseName(name)
		if !ok || now.Sub(made) <= abandonedAfter {
			continue
		}
		// Asked first, because the server would wait for the connections.
		var needed bool
		err := conn.QueryRow(ctx, "select exists (select from pg_stat_activity where datname = $1 or application_name = $2)",
			name, prefix).Scan(&needed)
		if err == nil && !needed {
			_, _ = conn.Exec(ctx, "drop database if exists "+quote(name))
		}
	}
}
