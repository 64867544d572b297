package metrics_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/metrics"
	"github.com/pglock-dev/pglock/migrations"
)

// Calls pass over the rows that it keeps, so nobody waits for it in PostgreSQL.
func TestTheAgeOfAPreparedTransactionUnderAFenceIsThere(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, map[string]string{"max_prepared_transactions": "2"})
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	pool := must.Get(pgxpool.New(t.Context(), server.URL()))(t)
	t.Cleanup(pool.Close)
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	execute(t, conn, acquire, "orders")
	c := newCollector(t, newAdmin(t, pool), metrics.Config{})
	execute(t, conn, `BEGIN; SELECT FROM pglock.locks; PREPARE TRANSACTION 'reads'`)
	want(t, scrape(t, c), map[string]float64{"pglock_blocking_transaction_seconds": 0})
	execute(t, conn, `BEGIN; SELECT pglock.fence(name, token, grant_id) FROM pglock.locks; PREPARE TRANSACTION 'writes'`)
	got := scrape(t, c)
	want(t, got, map[string]float64{"pglock_blocked_transactions": 0, "pglock_blocking_transactions": 0})
	between(t, got, "pglock_blocking_transaction_seconds", 0.0001, 60)
	execute(t, conn, `ROLLBACK PREPARED 'writes'`)
	want(t, scrape(t, c), map[string]float64{"pglock_blocking_transaction_seconds": 0})
}
