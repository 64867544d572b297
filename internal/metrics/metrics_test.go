package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/metrics"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

func newAdmin(t *testing.T, pool *pgxpool.Pool) *lockadmin.Admin {
	t.Helper()
	a := must.Get(lockadmin.New(t.Context(), pool))(t)
	return a
}

func newCollector(t *testing.T, admin *lockadmin.Admin, c metrics.Config) *metrics.Collector {
	t.Helper()
	return must.Get(metrics.NewCollector(admin, c))(t)
}

func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// scrape gives the value of every series, as in `pglock_lock_leases{lock="a"}`.
func scrape(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	families := must.Get(registryOf(c).Gather())(t)
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf("{%s=%q}", l.GetName(), l.GetValue())
			}
			if family.GetType() == dto.MetricType_COUNTER {
				found[name] = m.GetCounter().GetValue()
			} else {
				found[name] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func want(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for name, value := range want {
		if v, known := got[name]; !known || v != value {
			t.Errorf("%s is %v (known: %t), want %v", name, v, known, value)
		}
	}
}

// between checks an age in seconds.
func between(t *testing.T, got map[string]float64, name string, least, most float64) {
	t.Helper()
	if v, known := got[name]; !known || v < least || v > most {
		t.Errorf("%s is %v (known: %t), want %v to %v", name, v, known, least, most)
	}
}

const (
	acquire = `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'h', '1 h')`
	enqueue = `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'w', '1 h', p_wait => true, p_session_ttl => '1 h')`
)

// fleet makes two held locks with queues, a reader's lock, a dead holder and an old, free lock.
func fleet(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, name := range []string{"orders", "reports", "free", "dying"} {
		execute(t, conn, acquire, name)
	}
	for range 2 {
		execute(t, conn,
			`SELECT pglock.acquire_lease('readers', gen_random_uuid(), gen_random_uuid(), 'r', '1 h', p_mode => 'shared')`)
	}
	for _, name := range []string{"orders", "orders", "orders", "reports"} {
		execute(t, conn, enqueue, name)
	}
	for _, sql := range []string{
		`UPDATE pglock.locks SET expires_at = now() - interval '1 s' WHERE name = 'free'`,
		`UPDATE pglock.locks SET renewed_at = now() - interval '50 min', expires_at = now() + interval '10 min' WHERE name = 'dying'`,
		`UPDATE pglock.locks SET acquired_at = now() - interval '2 h' WHERE name = 'dying'`,
		`UPDATE pglock.locks SET acquired_at = now() - interval '1 min', renewed_at = now() - interval '1 min' WHERE name = 'readers' AND slot = 1`,
		`INSERT INTO pglock.sessions SELECT session_id, 'r', now(), now() - interval '16 s' FROM pglock.locks WHERE name = 'readers' AND slot = 1`,
		`UPDATE pglock.waiters SET enqueued_at = now() - interval '90 s' WHERE ticket = (SELECT min(ticket) FROM pglock.waiters)`,
		`UPDATE pglock.sessions SET alive_until = now() - interval '1 s' WHERE session_id =
			(SELECT session_id FROM pglock.waiters WHERE name = 'orders' ORDER BY ticket DESC LIMIT 1)`,
	} {
		execute(t, conn, sql)
	}
}

func TestTheNumbersAreOfAllClients(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	fleet(t, conn)
	execute(t, conn, acquire, "broken before")
	execute(t, conn, `SELECT pglock.break_lock('broken before', 'because', 'me')`)
	c := newCollector(t, newAdmin(t, db.Pool(t)), metrics.Config{Top: metrics.DefaultTop})
	got := scrape(t, c)
	want(t, got, map[string]float64{
		"pglock_up": 1, "pglock_locks_held": 4, "pglock_leases": 5, "pglock_leases_ending": 1, "pglock_waiters": 3,
		"pglock_waiters_dead": 1,
		"pglock_dead_holders": 2, "pglock_sessions": 3, "pglock_blocked_transactions": 0,
		"pglock_blocking_transactions":      0,
		`pglock_events_total{kind="break"}`: 0, `pglock_events_total{kind="takeover"}`: 0,
		`pglock_events_total{kind="bypass"}`: 0, `pglock_events_total{kind="overlap"}`: 0,
		`pglock_events_total{kind="epoch"}`: 0, "pglock_tokens_total": 0,
		`pglock_lock_leases{lock="readers"}`: 2, `pglock_lock_waiters{lock="orders"}`: 2,
		`pglock_lock_waiters_dead{lock="orders"}`: 1,
		`pglock_lock_leases_ending{lock="dying"}`: 1, `pglock_lock_leases_ending{lock="orders"}`: 0,
		`pglock_lock_leases{lock=""}`: 0, `pglock_lock_waiters{lock=""}`: 0,
	})
	between(t, got, "pglock_oldest_lease_seconds", 7200, 7300)
	between(t, got, "pglock_longest_wait_seconds", 90, 190)
	between(t, got, `pglock_lock_oldest_lease_seconds{lock="dying"}`, 7200, 7300)
	between(t, got, `pglock_lock_longest_wait_seconds{lock="orders"}`, 90, 190)
	between(t, got, "pglock_scrape_duration_seconds", 0.0001, 5)
	if _, known := got[`pglock_lock_leases{lock="free"}`]; known {
		t.Error("a free lock has a series")
	}

	want(t, scrape(t, c), map[string]float64{`pglock_events_total{kind="break"}`: 0})
	execute(t, conn, `SELECT pglock.break_lock('orders', 'because', 'me')`)
	execute(t, conn, acquire, "free") // takes over
	execute(t, conn, `SELECT pglock.prune_history('0')`)
	after := scrape(t, c)
	want(t, after, map[string]float64{`pglock_events_total{kind="break"}`: 0,
		`pglock_events_total{kind="takeover"}`: 0})
	execute(t, conn, `SELECT pglock.break_lock('orders', 'because', 'me')`)
	execute(t, conn, `UPDATE pglock.locks SET expires_at = now() - interval '1 s' WHERE name = 'free'`)
	execute(t, conn, acquire, "free")
	for range 2 { // counted once, and not less when they are pruned
		after = scrape(t, c)
		want(t, after, map[string]float64{`pglock_events_total{kind="break"}`: 1,
			`pglock_events_total{kind="takeover"}`: 1})
		execute(t, conn, `SELECT pglock.prune_history('0')`)
	}
	families := must.Get(registryOf(c).Gather())(t)
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func registryOf(c prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	return r
}

func TestSeriesPerLockAreBoundedAndTheRestIsSummedUp(t *testing.T) {
	db := pgtest.Parallel(t)
	fleet(t, db.Conn(t))
	admin := newAdmin(t, db.Pool(t))
	got := scrape(t, newCollector(t, admin, metrics.Config{Top: 2})) // orders waits longest, dying is held longest
	var names []string
	for name := range got {
		if strings.HasPrefix(name, "pglock_lock_leases{") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if want := []string{`pglock_lock_leases{lock=""}`, `pglock_lock_leases{lock="dying"}`,
		`pglock_lock_leases{lock="orders"}`}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	want(t, got, map[string]float64{`pglock_lock_leases{lock=""}`: 3, `pglock_lock_leases_ending{lock=""}`: 0,
		`pglock_lock_leases_ending{lock="dying"}`: 1, `pglock_leases`: 5})
	off := scrape(t, newCollector(t, admin, metrics.Config{Top: 0}))
	for name := range off {
		if strings.HasPrefix(name, "pglock_lock_") {
			t.Errorf("%s although it is switched off", name)
		}
	}
	want(t, off, map[string]float64{`pglock_leases`: 5})
}

func TestABlockedTransactionAndTheOneThatBlocksIt(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, blocker := db.Conn(t), db.Conn(t)
	execute(t, conn, acquire, "orders")
	execute(t, blocker, `BEGIN`)
	execute(t, blocker, `SELECT FROM pglock.locks WHERE name = 'orders' FOR UPDATE`)
	waiting := db.Conn(t)
	ended := must.Go(func() error {
		_, err := waiting.Exec(t.Context(), `SELECT pglock.break_lock('orders', 'because', 'me')`)
		return err
	})
	c := newCollector(t, newAdmin(t, db.Pool(t)), metrics.Config{Top: metrics.DefaultTop})
	var got map[string]float64
	pgtest.Eventually(t, "one is blocked", func() bool {
		got = scrape(t, c)
		return got["pglock_blocked_transactions"] == 1
	})
	want(t, got, map[string]float64{"pglock_blocking_transactions": 1})
	between(t, got, "pglock_blocking_transaction_seconds", 0.0001, 60)
	execute(t, blocker, `ROLLBACK`)
	must.Do(t, <-ended)
	want(t, scrape(t, c), map[string]float64{"pglock_blocked_transactions": 0, "pglock_blocking_transactions": 0,
		"pglock_blocked_transaction_seconds": 0})
}

// Whoever has locked a whole table keeps all other numbers from everybody.
func TestWhoIsBlockedByALockOfAWholeTableIsCounted(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, waiting := db.Conn(t), db.Conn(t)
	c := newCollector(t, newAdmin(t, db.Pool(t)), metrics.Config{Timeout: time.Second})
	execute(t, conn, `BEGIN; LOCK TABLE pglock.locks`)
	ended := must.Go(func() error {
		_, err := waiting.Exec(t.Context(), acquire, "orders")
		return err
	})
	var got map[string]float64
	pgtest.Eventually(t, "one is blocked", func() bool {
		got = scrape(t, c)
		return got["pglock_blocked_transactions"] == 1
	})
	want(t, got, map[string]float64{"pglock_up": 0, "pglock_blocking_transactions": 1})
	between(t, got, "pglock_blocked_transaction_seconds", 0.0001, 60)
	if _, known := got["pglock_leases"]; known {
		t.Errorf("%v, want no number of the table", got)
	}
	execute(t, conn, `ROLLBACK`)
	must.Do(t, <-ended)
}

func TestAFailedScrapeSaysSoAndShowsNoOldNumbers(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	fleet(t, conn)
	var failures []error
	c := newCollector(t, newAdmin(t, db.Pool(t)), metrics.Config{Timeout: time.Second,
		OnError: func(err error) { failures = append(failures, err) }})
	execute(t, conn, `BEGIN; LOCK TABLE pglock.locks`)
	for range 2 {
		got := scrape(t, c)
		if len(got) != 2 || got["pglock_up"] != 0 {
			t.Errorf("%v, want pglock_up 0 and the duration", got)
		}
	}
	if len(failures) != 2 || !errors.Is(failures[0], context.DeadlineExceeded) {
		t.Errorf("errors %v", failures)
	}
	execute(t, conn, `ROLLBACK`)
	pgtest.Eventually(t, "it recovers", func() bool { return scrape(t, c)["pglock_leases"] == 5 })
}

// The diagnosis reads more tables than the numbers do. Somebody may have locked one of these.
func TestADiagnosisThatFailsKeepsTheNumbers(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	fleet(t, conn)
	var failures []error
	c := newCollector(t, newAdmin(t, db.Pool(t)), metrics.Config{Timeout: 6 * time.Second,
		OnError: func(err error) { failures = append(failures, err) }})
	execute(t, conn, `BEGIN; LOCK TABLE pglock.fences`)
	for range 2 {
		got := scrape(t, c)
		want(t, got, map[string]float64{"pglock_up": 1, "pglock_leases": 5})
		if n, there := got["pglock_doctor_findings_attention"]; there {
			t.Errorf("%v findings of a diagnosis that has failed", n)
		}
	}
	if len(failures) != 1 || !errors.Is(failures[0], context.DeadlineExceeded) {
		t.Errorf("errors %v, want one of the first scrape", failures)
	}
}

// queries counts statements that ask for statistics, and tells of each that begins.
type queries struct {
	n     atomic.Int64
	began chan struct{}
}

func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, ".statistics(") {
		q.n.Add(1)
		q.began <- struct{}{}
	}
	return ctx
}

func (*queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestSimultaneousScrapesShareOneLookAtTheDatabase(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	counted := &queries{began: make(chan struct{}, 100)}
	handler := must.Get(metrics.New(newAdmin(t, db.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = counted
	})), metrics.Config{Timeout: time.Minute}))(t)
	execute(t, conn, `BEGIN; LOCK TABLE pglock.locks`)
	const scrapes = 10
	all := pgtest.Group(t)
	for range scrapes {
		all.Go(func() {
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			if !strings.Contains(answer.Body.String(), "\npglock_up 1\n") {
				t.Errorf("%d %s", answer.Code, answer.Body)
			}
		})
	}
	<-counted.began
	for deadline := time.Now().Add(30 * time.Second); sharing() < scrapes-1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d of %d scrapes wait for the look of another", sharing(), scrapes)
			break
		}
	}
	execute(t, conn, `ROLLBACK`)
	all.Wait()
	if n := counted.n.Load(); n != 1 {
		t.Errorf("%d looks at the database for %d scrapes", n, scrapes)
	}
}

// sharing counts the goroutines that wait for the look of another.
func sharing() (n int) {
	stacks := make([]byte, 1<<22)
	for one := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(one, "\nsync.(*WaitGroup).Wait(") &&
			strings.Contains(one, "\ngolang.org/x/sync/singleflight.(*Group).Do(") {
			n++
		}
	}
	return n
}

func TestNamesOfLocksAreSafeAsLabels(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	names := []string{
		"plain/1", "umlaut ü", `quote " and \ backslash`, "line\nbreak", "\x1b[31mred", "bidi \u202eevil",
		"<script>alert(1)</script>",
		strings.Repeat("x", 512), strings.Repeat("x", 511) + "y", strings.Repeat("ü", 256), "a\x01", "a\x02", "a\uFFFD",
	}
	for _, name := range names {
		execute(t, conn, acquire, name)
	}
	c := newCollector(t, newAdmin(t, db.Pool(t)), metrics.Config{Top: 100})
	labels := lockLabels(t, c)
	for _, label := range labels { // somebody who knows how labels are made cannot break a scrape
		if !slices.Contains(names, label) {
			execute(t, conn, acquire, label)
		}
	}
	labels = lockLabels(t, c)
	if len(labels) < 2*len(names)-5 {
		t.Errorf("%d labels: %q", len(labels), labels)
	}
	for _, label := range labels {
		if len(label) > 160 || strings.ContainsFunc(label, func(r rune) bool { return r < ' ' || r == '\u202e' }) {
			t.Errorf("label %q", label)
		}
	}
	if !slices.Contains(labels, "plain/1") || !slices.Contains(labels, "umlaut ü") {
		t.Errorf("harmless names were changed: %q", labels)
	}
	answer := httptest.NewRecorder()
	handler := must.Get(metrics.New(newAdmin(t, db.Pool(t)), metrics.Config{Top: 100}))(t)
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if body := answer.Body.String(); !strings.Contains(body, `lock="quote \" and \\ backslash"`) ||
		strings.ContainsAny(body, "\x1b\x01\u202e") {
		t.Errorf("%d %q", answer.Code, body)
	}
}

// lockLabels gives the label of each lock; two that are the same fail.
func lockLabels(t *testing.T, c prometheus.Collector) (labels []string) {
	t.Helper()
	families := must.Get(registryOf(c).Gather())(t)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "pglock_lock_leases" && m.GetLabel()[0].GetValue() != "" {
				labels = append(labels, m.GetLabel()[0].GetValue())
			}
		}
	}
	return labels
}

func TestABadConfigIsRefused(t *testing.T) {
	t.Parallel()
	admin := newAdmin(t, pgtest.Database(t).Pool(t))
	for field, bad := range map[string]metrics.Config{
		"top": {Top: -1}, "Top": {Top: 1001}, "timeout": {Timeout: -1},
	} {
		_, err := metrics.New(admin, bad)
		var refused *pglock.ArgumentError
		if !errors.As(err, &refused) || !errors.Is(err, pglock.ErrInvalid) || refused.Field != strings.ToLower(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := metrics.Health(nil, metrics.Config{}); !errors.Is(err, pglock.ErrInvalid) {
		t.Error(err)
	}
	if _, err := admin.Statistics(t.Context(), -1); !errors.Is(err, pglock.ErrInvalid) {
		t.Error(err)
	}
}
