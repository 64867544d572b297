package run

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/server"
)

// logUse is what the server has written to its log since it started.
type logUse struct{ flushes, bytes int64 }

// backendsGone is how long the connections of a worker that has ended may take to end too.
const backendsGone = 5 * time.Second

const otherClients = `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`

// readLog reads the server's log use when nobody but this is connected any more: a backend reports its work a second
// late or when it ends. Only PostgreSQL has this.
func readLog(ctx context.Context, s *server.Running) (use logUse, err error) {
	if s.Name != peer.Postgres {
		return use, nil
	}
	conn, err := pgx.Connect(ctx, s.Address)
	if err != nil {
		return use, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the end
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(backendsGone); ; {
		var others int
		if err := conn.QueryRow(ctx, otherClients).Scan(&others); err != nil {
			return use, err
		}
		if others == 0 {
			break
		}
		if time.Now().After(late) {
			return use, fmt.Errorf("%d connections are still there %v after their worker ended", others, backendsGone)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return use, context.Cause(ctx)
		}
	}
	var version int
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return use, err
	}
	flushes := `SELECT wal_sync FROM pg_stat_wal`
	if version >= 180000 { // counted there from then on
		flushes = `SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal'`
	}
	if err := conn.QueryRow(ctx, flushes).Scan(&use.flushes); err != nil {
		return use, err
	}
	return use, conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&use.bytes)
}
