package metrics_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// What a scrape reads of a million locks: all of them free, and a tenth of them held, each with a waiter.
func BenchmarkAMillionLocks(b *testing.B) {
	for name, held := range map[string]int{"free": 0, "a tenth held": 100_000} {
		b.Run(name, func(b *testing.B) {
			db := pgtest.Database(b)
			conn := db.Conn(b)
			fill(b, conn,
				`INSERT INTO pglock.locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at, ended_at)
				SELECT 'job/' || n, n, gen_random_uuid(), gen_random_uuid(), 'host/program[1]', '30 s', now(), now(),
					CASE WHEN n <= $1 THEN now() + interval '1 h' ELSE '-infinity' END, now()
				FROM generate_series(1, 1000000) n`, held)
			fill(b, conn,
				`INSERT INTO pglock.sessions SELECT gen_random_uuid(), 'w', now() + interval '1 h' FROM generate_series(1, 1000)`)
			fill(b, conn,
				`INSERT INTO pglock.waiters (name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
				SELECT 'job/' || n, n, 'exclusive', gen_random_uuid(), (SELECT session_id FROM pglock.sessions LIMIT 1), false, 'w', '30 s', now()
				FROM generate_series(1, $1::int) n`, held)
			fill(b, conn, `VACUUM ANALYZE pglock.locks`)
			admin := must.Get(lockadmin.New(b.Context(), db.Pool(b)))(b)
			for b.Loop() {
				if s, err := admin.Statistics(b.Context(), 20); err != nil || s.Locks != int64(held) {
					b.Fatalf("%d locks, %v", s.Locks, err)
				}
			}
		})
	}
}

func fill(b *testing.B, conn *pgx.Conn, sql string, args ...any) {
	b.Helper()
	if _, err := conn.Exec(b.Context(), sql, args...); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}
