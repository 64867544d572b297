package lockadmin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// farAway lets time pass on the server before the first statement of each kind, as on a slow line.
type farAway map[string]time.Duration

func (f farAway) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	for of, d := range f {
		if d > 0 && strings.Contains(q.SQL, of+"(") {
			f[of] = 0
			_, _ = conn.Exec(ctx, "SELECT pg_catalog.pg_sleep($1)", d.Seconds())
		}
	}
	return ctx
}

func (f farAway) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The write of the present holder began with its lease, and the statements of a look come seconds after each other: the
// write is not older than the lease for that, and all ages are those of one moment.
func TestTheAgesOfALookAreOfOneMoment(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	conn := db.Conn(t)
	line := farAway{"get_lock": time.Second, "list_backends": 3 * time.Second, "holder_lives": time.Second,
		"list_waiters": time.Second, "list_waits": time.Second}
	far := db.Pool(t, func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.Tracer = 1, line })
	pool := db.Pool(t)
	admin := newAdmin(t, far)
	_, lease := beating(t, pool, "report")
	write, pid := openly(t, db,
		"SELECT pglock.fence(l.name, l.token, l.grant_id) FROM pglock.locks l WHERE l.name = 'report'")
	execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'next', '1 h',
		p_wait => true, p_session_ttl => '1 h')`)
	pgtest.Eventually(t, "the write has been idle for more than a second", func() bool {
		var idle bool
		must.Do(t, conn.QueryRow(t.Context(), `SELECT clock_timestamp() - state_change > '1.1 s' FROM pg_stat_activity
			WHERE pid = $1`, pid).Scan(&idle))
		return idle
	})
	e := must.Get(admin.Explain(t.Context(), "report"))(t)
	for of, d := range line {
		if d > 0 {
			t.Errorf("the look has not called %s", of)
		}
	}
	v := e.Verdicts[0]
	if v.Kind != "idle" || v.Severity != lockadmin.SeverityNote || strings.Contains(v.Text, "former holder") {
		t.Errorf("%s, %s: %s; want a note on the holder's own write", v.Kind, v.Severity, v.Text)
	}
	h, w := e.Holders[0], e.Queue.Alive
	if held, renewed := e.At.Sub(h.AcquiredAt), e.At.Sub(h.RenewedAt); h.HeldFor != held || h.SinceRenewal != renewed ||
		h.Remaining != h.ExpiresAt.Sub(e.At) {
		t.Errorf("held for %v, renewed %v ago, %v left; want %v, %v, %v", h.HeldFor, h.SinceRenewal, h.Remaining, held,
			renewed, h.ExpiresAt.Sub(e.At))
	}
	if signed := e.At.Sub(h.SignedAt); h.SignedAt.IsZero() || h.Silent != signed {
		t.Errorf("silent for %v, want %v: %+v", h.Silent, signed, h.HolderLife)
	}
	if waiting := e.At.Sub(w.Since); w.Waiting != waiting || h.LongestWait-waiting > time.Second {
		t.Errorf("waits for %v and %v, want %v", w.Waiting, h.LongestWait, waiting)
	}
	for _, b := range e.Processes {
		if b.Use == lockadmin.BackendWrite && b.Transaction > h.HeldFor {
			t.Errorf("the write is %v old, and its lease %v", b.Transaction, h.HeldFor)
		}
	}
	execute(t, write, "ROLLBACK")
	must.Do(t, lease.Release(t.Context()))
}
