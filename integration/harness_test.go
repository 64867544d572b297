package integration

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role)) // this process is a worker of a test
	}
	if label := os.Getenv(minderVariable); label != "" {
		os.Exit(mindContainer(label)) // this process minds the container of another
	}
	_ = flag.Set("test.parallel", "16") // tests that are parallel mostly wait; the command line says it better
	pgtest.Main(m, pgtest.PreferDocker(startContainer), pgtest.IgnoreLeaks(leaksOfDocker...),
		// A link of the fault proxy that was silenced does not always end with its connection.
		pgtest.IgnoreLeaks(goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run")),
		pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// patience bounds every wait for something that happens at once unless the code is broken.
const patience = 20 * time.Second

func newClient(t *testing.T, pool *pgxpool.Pool, opts ...pglock.Option) *pglock.Client {
	t.Helper()
	c := must.Get(pglock.New(t.Context(), pool, opts...))(t)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// exported is the grant ID as Export tells it.
func exported(l *pglock.Lease) uuid.UUID { return l.Export().ID }

func newAdmin(t *testing.T, pool *pgxpool.Pool) *lockadmin.Admin {
	t.Helper()
	a := must.Get(lockadmin.New(t.Context(), pool))(t)
	return a
}

// newPool opens a pool on a connection string; it closes after the clients that newClient makes later.
func newPool(t *testing.T, url string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := must.Get(pgxpool.ParseConfig(url))(t)
	for _, f := range change {
		f(config)
	}
	pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	return pool
}

// migrated starts a server of the test's own and migrates its database.
func migrated(t *testing.T, settings map[string]string) *pgserver.Server {
	t.Helper()
	server := pgtest.Dedicated(t, settings)
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	return server
}

// peer is a program that speaks to the SQL functions itself, over one connection, so that a test decides when its
// transactions begin and end.
type peer struct {
	*pgx.Conn
	key uuid.UUID // of its session
}

// session is what others see of the peer's session.
func (p *peer) session() uuid.UUID {
	sum := sha256.Sum256(p.key[:])
	return uuid.UUID(sum[:16])
}

// channel is where the peer hears of its grants.
func (p *peer) channel() string { return "pglock_" + strings.ReplaceAll(p.session().String(), "-", "") }

func newPeer(t *testing.T, url string) *peer {
	t.Helper()
	conn := must.Get(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &peer{conn, uuid.New()}
}

// grant is a peer's lease.
type grant struct {
	granted   bool
	name      string
	id        uuid.UUID
	token     int64
	remaining time.Duration // of somebody else's lease, where it was not granted
}

// notes notes that the peer's session is alive, so that its next request need not.
func (p *peer) notes(t *testing.T) {
	t.Helper()
	p.exec(t, `SELECT pglock.keep_session($1, 'peer', '10 s')`, p.key.String())
}

func (p *peer) acquire(ctx context.Context, name string, id uuid.UUID, ttl time.Duration, retry bool) (grant, error) {
	g := grant{name: name, id: id}
	var token, us *int64
	err := p.QueryRow(ctx,
		`SELECT granted, token, (more ->> 'remaining_us')::bigint FROM pglock.acquire_lease($1, $2, $3, 'peer', $4, NULL, $5)`,
		name, id.String(), p.key.String(), ttl, retry).Scan(&g.granted, &token, &us)
	g.token, g.remaining = orZero(token), time.Duration(orZero(us))*time.Microsecond
	return g, err
}

func (p *peer) mustAcquire(t *testing.T, name string, ttl time.Duration) grant {
	t.Helper()
	g, err := p.acquire(t.Context(), name, uuid.New(), ttl, false)
	if err != nil || !g.granted {
		t.Fatalf("acquire %q: %+v, %v", name, g, err)
	}
	return g
}

func (p *peer) fence(ctx context.Context, g grant, resource string) error {
	_, err := p.Exec(ctx, `SELECT FROM pglock.fence($1, $2, $3, $4)`, g.name, g.token, g.id.String(), resource)
	return err
}

func (p *peer) release(ctx context.Context, g grant) (released bool, err error) {
	err = p.QueryRow(ctx, `SELECT released FROM pglock.release_lease($1, $2, $3)`, g.name, g.token,
		g.id.String()).Scan(&released)
	return released, err
}

// renew renews a lease by its TTL, and waits for its row for so long at most. outcome is renewed, busy, or why it is
// lost.
func (p *peer) renew(ctx context.Context, g grant, wait time.Duration) (outcome string, err error) {
	err = p.QueryRow(ctx,
		`SELECT outcome FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[coalesce(
		(SELECT l.slot FROM pglock.locks l WHERE l.name = $1 AND l.grant_id = $3::uuid), 0)], $4)`, g.name, g.token,
		g.id.String(), wait).Scan(&outcome)
	return outcome, err
}

func (p *peer) mustRenew(t *testing.T, g grant) {
	t.Helper()
	if outcome, err := p.renew(t.Context(), g, patience); err != nil || outcome != "renewed" {
		t.Fatalf("renew %q: %s, %v", g.name, outcome, err)
	}
}

// left is how long the lease of a grant still runs.
func (p *peer) left(ctx context.Context, g grant) (time.Duration, error) {
	var us int64
	err := p.QueryRow(ctx,
		`SELECT (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint FROM pglock.locks WHERE name = $1 AND grant_id = $2`,
		g.name, g.id.String()).Scan(&us)
	return time.Duration(us) * time.Microsecond, err
}

func (p *peer) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := p.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// awaitBlocked returns when the peer's backend waits for a lock; the caller has sent its statement from a goroutine.
func (p *peer) awaitBlocked(t *testing.T, look *peer) {
	t.Helper()
	pgtest.Eventually(t, "the backend to wait for a lock", func() bool {
		return one[bool](t, look, `SELECT cardinality(pg_blocking_pids($1)) > 0`, p.PgConn().PID())
	})
}

// awaitExpiry returns when every lease of the lock has ended by the server's clock.
func awaitExpiry(t *testing.T, look *peer, name string) {
	t.Helper()
	pgtest.Eventually(t, "the lease to expire", func() bool {
		left := one[time.Duration](t, look, `SELECT CASE WHEN max(expires_at) > clock_timestamp()
			THEN max(expires_at) - clock_timestamp() ELSE '0' END FROM pglock.locks WHERE name = $1`, name)
		time.Sleep(min(left, time.Second)) // asks no more often than it must
		return left == 0
	})
}

// one reads one value.
func one[T any](tb testing.TB, p *peer, sql string, args ...any) (v T) {
	tb.Helper()
	return pgtest.One[T](tb, p, sql, args...)
}

// wantCount compares a number; what may show it with %d.
func wantCount(tb testing.TB, look *peer, want int, what, sql string, args ...any) {
	tb.Helper()
	if n := one[int](tb, look, sql, args...); n != want {
		if strings.Contains(what, "%") {
			what = fmt.Sprintf(what, n)
		}
		tb.Error(what)
	}
}

// state is the SQLSTATE of a server's error, or "".
func state(err error) string {
	if pgErr, is := errors.AsType[*pgconn.PgError](err); is {
		return pgErr.Code
	}
	return ""
}

// logGrants makes the database keep a log of every change of every lock row, numbered while the row is locked. In
// old_expires it says when the row's lease before had ended. Only hand_over ends one lease and grants the next in one
// row version: that says when by another ended_at. Otherwise ended_at is the end of a lease long before.
func logGrants(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `
		CREATE TABLE public.grant_log (
			n bigint GENERATED ALWAYS AS IDENTITY, name text, slot int, mode text, capacity int, ticket bigint, grant_id uuid,
			old_token bigint, new_token bigint, old_expires timestamptz, new_expires timestamptz,
			granted_at timestamptz, logged_at timestamptz DEFAULT clock_timestamp());
		CREATE FUNCTION public.log_grant() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		DECLARE callers text;
		BEGIN
			GET DIAGNOSTICS callers = PG_CONTEXT;
			IF OLD IS NULL OR OLD.token <> NEW.token OR OLD.expires_at <> NEW.expires_at THEN
				INSERT INTO public.grant_log (name, slot, mode, capacity, ticket, grant_id, old_token, new_token, old_expires, new_expires, granted_at)
					VALUES (NEW.name, NEW.slot, NEW.mode, NEW.capacity, NEW.ticket, NEW.grant_id, OLD.token, NEW.token,
						CASE WHEN NEW.expires_at = '-infinity' THEN LEAST(NEW.ended_at, OLD.expires_at) -- released, or broken
							WHEN OLD.expires_at = '-infinity' THEN OLD.ended_at                         -- before this grant
							WHEN callers LIKE '%hand_over(%' AND NEW.ended_at IS DISTINCT FROM OLD.ended_at THEN NEW.acquired_at
							ELSE OLD.expires_at END, NEW.expires_at, NEW.acquired_at);
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER log_grant AFTER INSERT OR UPDATE ON pglock.locks FOR EACH ROW EXECUTE FUNCTION public.log_grant();`)
}

// checkGrants reads the log: no two leases of one slot overlap by the server's clock, and tokens strictly increase. It
// returns the number of grants.
func checkGrants(tb testing.TB, p *peer) int {
	tb.Helper()
	wantCount(tb, p, 0, "I1: %d grants began before the lease before them had ended", `SELECT count(*) FROM public.grant_log
		WHERE new_token IS DISTINCT FROM old_token AND new_expires > '-infinity' AND old_expires > granted_at`)
	wantCount(tb, p, 0, "I2: %d grants have a token that is not greater than the one before",
		`SELECT count(*) FROM (
			SELECT new_token, lag(new_token) OVER (PARTITION BY name, slot ORDER BY n) AS before, old_token,
			       new_expires > '-infinity' AND (old_token IS NULL OR granted_at <> lag(granted_at) OVER (PARTITION BY name, slot ORDER BY n)) AS is_grant
			FROM public.grant_log) l
		WHERE before IS NOT NULL AND (new_token < before OR is_grant AND new_token <= before)`)
	return one[int](tb, p, `SELECT count(DISTINCT new_token) FROM public.grant_log`)
}

// waits counts the calls of a client that have begun to wait: they know their place in the queue.
type waits struct{ atomic.Int64 }

func (w *waits) Observe(_ context.Context, e pglock.Event) {
	if e.Kind == pglock.EventWait {
		w.Add(1)
	}
}

// patientCalls takes the limits away that calls for many have for their waits, so that a circle of waiters would be
// one.
func patientCalls(t *testing.T, p *peer) {
	t.Helper()
	for _, function := range []string{"acquire_leases", "release_otherwise", "give_up"} {
		p.change(t, function, "'50ms'", "'1min'")
	}
}

// change replaces a piece of the text of a function.
func (p *peer) change(t *testing.T, function, old, replacement string) {
	t.Helper()
	text := one[string](t, p,
		`SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND proname = $1`,
		function)
	changed := strings.Replace(text, old, replacement, 1)
	if changed == text {
		t.Fatalf("this test does not fit %s", function)
	}
	p.exec(t, changed)
}
