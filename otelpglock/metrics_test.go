package otelpglock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/otelpglock"
	"github.com/pglock-dev/pglock/pglock"
)

// text is a series without its metric, as in "2 (0.5) s a=b c=d": count, sum, unit, attributes.
func (s series) text() string {
	words := []string{fmt.Sprint(s.count)}
	if s.sum != 0 {
		words = append(words, fmt.Sprintf("(%g)", math.Round(s.sum*1e9)/1e9))
	}
	words = append(words, s.unit)
	for _, kv := range s.attributes.ToSlice() {
		if kv.Key != "db.system.name" {
			words = append(words, fmt.Sprintf("%s=%s", strings.TrimPrefix(string(kv.Key), "pglock."),
				kv.Value.String()))
		} else if kv.Value.AsString() != "postgresql" {
			words = append(words, "another database")
		}
	}
	return strings.Join(words, " ")
}

func TestEachEventIsMeasuredWithItsUnitAndAttributes(t *testing.T) {
	t.Parallel()
	lease := pglock.Event{Lock: "orders/1", Mode: pglock.ModeExclusive, Token: 7, Holder: "me", TTL: 30 * time.Second}
	with := func(kind pglock.EventKind, change func(*pglock.Event)) pglock.Event {
		e := lease
		e.Kind, e.At = kind, time.Now()
		change(&e)
		return e
	}
	for _, c := range []struct {
		event pglock.Event
		want  map[string]string
	}{
		{with(pglock.EventWait, func(e *pglock.Event) { e.Place = 3 }),
			map[string]string{"pglock.queue.place": "1 (3) {request} lock.mode=exclusive"}},
		{with(pglock.EventGrant, func(e *pglock.Event) {
			e.Waited, e.Place = 2*time.Second, 1
		}), map[string]string{
			"pglock.lock.wait_time": "1 (2) s grant.way=queue lock.mode=exclusive",
			"pglock.lock.grants":    "1 {grant} grant.way=queue lock.mode=exclusive"}},
		{with(pglock.EventFailed, func(e *pglock.Event) { e.Err = fmt.Errorf("x: %w", context.DeadlineExceeded) }),
			map[string]string{"pglock.lock.failures": "1 {attempt} error.type=timeout lock.mode=exclusive"}},
		{with(pglock.EventFailed, func(e *pglock.Event) { e.Err = errors.New("anything") }),
			map[string]string{"pglock.lock.failures": "1 {attempt} error.type=_OTHER lock.mode=exclusive"}},
		{with(pglock.EventRenew, func(e *pglock.Event) { e.Count, e.Gap = 4, 12*time.Second }), map[string]string{
			"pglock.renewal.batch_size": "1 (4) {lease}", "pglock.renewal.gap_ratio": "1 (0.4) 1 lock.mode=exclusive"}},
		{with(pglock.EventRenewLate, func(e *pglock.Event) {
			e.Count = 2
		}), map[string]string{"pglock.renewal.late": "2 {lease}"}},
		{with(pglock.EventRenewFailed, func(e *pglock.Event) {
			e.Count, e.Gap, e.Err = 4, 15*time.Second, errors.New("x")
		}), map[string]string{
			"pglock.renewal.failures": "1 {attempt}"}},
		{with(pglock.EventLost, func(e *pglock.Event) {
			e.Held, e.Reason, e.Err = time.Minute, pglock.ReasonBroken, pglock.ErrLost
		}), map[string]string{
			"pglock.lease.losses":   "1 {lease} loss.reason=broken",
			"pglock.lease.use_time": "1 (60) s lease.end=lost lock.mode=exclusive"}},
		{with(pglock.EventRelease, func(e *pglock.Event) { e.Held = 3 * time.Second }),
			map[string]string{"pglock.lease.use_time": "1 (3) s lease.end=release lock.mode=exclusive"}},
		{with(pglock.EventOutlived, func(e *pglock.Event) { e.Late, e.Reason = 5*time.Second, pglock.ReasonExpired }),
			map[string]string{"pglock.lease.outlived_time": "1 (5) s lock.mode=exclusive loss.reason=expired"}},
		{pglock.Event{Kind: pglock.EventHandOver, Lock: "orders/1", Count: 1, Took: 20 * time.Millisecond},
			map[string]string{"pglock.handover.duration": "1 (0.02) s"}},
		{pglock.Event{Kind: pglock.EventHandOver, Lock: "orders/1", Count: 1}, nil}, // nobody knows how long it took
		{with(pglock.EventWrite, func(e *pglock.Event) {
			e.Resource, e.Took, e.Age = "orders/1", 20*time.Second, 25*time.Second
		}), map[string]string{
			"pglock.write.duration": "1 (20) s lock.mode=exclusive", "pglock.write.token_age": "1 (25) s " +
				"lock.mode=exclusive"}},
		{with(pglock.EventStale, func(e *pglock.Event) {
			e.LastToken, e.Age, e.Err = 8, 40*time.Second, fencedstore.ErrStaleToken
		}), map[string]string{
			"pglock.write.stale": "1 {write}", "pglock.write.token_age": "1 (40) s error.type=stale_token " +
				"lock.mode=exclusive"}},
		{pglock.Event{Kind: pglock.EventStale, Resource: "file", Token: 7, LastToken: 8, Err: errors.New("x")},
			map[string]string{"pglock.write.stale": "1 {write}"}},
		{with(pglock.EventStale, func(e *pglock.Event) { // it has written itself: a repetition
			e.LastToken, e.Err = e.Token, fencedstore.ErrStaleToken
		}), map[string]string{"pglock.write.refused": "1 {write} error.type=stale_token lock.mode=exclusive"}},
		{with(pglock.EventRefused, func(e *pglock.Event) {
			e.Age, e.Err = time.Second, pglock.ErrLost
		}), map[string]string{
			"pglock.write.refused":   "1 {write} error.type=lost lock.mode=exclusive",
			"pglock.write.token_age": "1 (1) s error.type=lost lock.mode=exclusive"}},
		{with(pglock.EventOutcomeUnknown, func(e *pglock.Event) { e.Err = pglock.ErrOutcomeUnknown }),
			map[string]string{"pglock.write.unknown": "1 {write}"}},
		{pglock.Event{Kind: pglock.EventReconnect, Connection: "listener", Took: time.Second,
			Err: errors.New("x")},
			map[string]string{"pglock.connection.reconnects": "1 {connection} connection=listener"}},
		{pglock.Event{Kind: pglock.EventPolling, Connection: "listener", Count: 3, Err: errors.New("x")},
			map[string]string{"pglock.connection.fallbacks": "1 {event} fallback=polling"}},
		{pglock.Event{Kind: pglock.EventUnnamed, Count: 3, Err: errors.New("x")},
			map[string]string{"pglock.connection.fallbacks": "1 {event} fallback=unnamed statements"}},
		{pglock.Event{Kind: pglock.EventObserver, Count: 9, Panics: 2},
			map[string]string{"pglock.observer.dropped": "9 {event}", "pglock.observer.panics": "2 {panic}"}},
	} {
		s := newTelemetry(t)
		s.Observe(t.Context(), c.event)
		got := map[string]string{}
		for name, all := range s.metrics(t) {
			for _, one := range all {
				if one.count > 0 {
					got[name] += one.text()
				}
				if one.above > 0 {
					t.Errorf("%s: %s is above the last boundary of %s", c.event.Kind, one.text(), name)
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n got %v\nwant %v", c.event.Kind, got, c.want)
		}
	}
}

// total adds up the counts of a metric's series with this attribute; "" is any.
func total(all []series, key attribute.Key, value string) (n uint64) {
	for _, s := range all {
		if v, known := s.attributes.Value(key); key == "" || known && v.String() == value {
			n += s.count
		}
	}
	return n
}

func TestTheLifeOfLocksOnAServerBecomesMetrics(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	s := newTelemetry(t)
	a, b := startClient(t, db, pglock.WithObserver(s)), startClient(t, db, pglock.WithObserver(s))
	admin := must.Get(lockadmin.New(t.Context(), pool))(t)
	store := fencedstore.New(pool)
	write := func(l *pglock.Lease) error {
		return store.Write(t.Context(), l, func(context.Context, pgx.Tx) error { return nil })
	}

	first := mustAcquire(t.Context(), t, a, "orders/1")
	if _, err := b.TryAcquire(t.Context(), "orders/1"); !errors.Is(err, pglock.ErrHeld) {
		t.Fatal(err)
	}
	granted := make(chan *pglock.Lease)
	go func() {
		l, _ := b.Acquire(t.Context(), "orders/1")
		granted <- l
	}()
	if e := s.await(t, pglock.EventWait); e.Place != 1 {
		t.Errorf("place %d", e.Place)
	}
	must.Do(t, first.Release(t.Context()))
	second := <-granted
	must.Do(t, write(second))
	must.Do(t, hooks.Of(second).Renew(t.Context()))
	must.Get(admin.Break(t.Context(), "orders/1", "a test", lockadmin.BreakOptions{}))(t)
	third := mustAcquire(t.Context(), t, a, "orders/1")
	must.Do(t, write(third))
	if err := write(second); !errors.Is(err, fencedstore.ErrStaleToken) {
		t.Fatal(err)
	}
	if err := hooks.Of(second).Renew(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	if err := write(second); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	if err := second.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	short := mustAcquire(t.Context(), t, b, "short", pglock.WithTTL(6*time.Second))
	// now the heartbeat has a connection; an earlier event is of Renew
	for s.await(t, pglock.EventRenew).Lock != "short" {
	}
	if _, err := pool.Exec(t.Context(),
		`SELECT pg_terminate_backend(pid) FROM pglock.list_backends('short')`); err != nil {
		t.Fatal(err)
	}
	if e := s.await(t, pglock.EventReconnect); e.Connection != "heartbeat" {
		t.Errorf("%+v", e)
	}
	_ = short.Release(t.Context())
	for _, c := range []*pglock.Client{a, b} { // which delivers all events
		must.Note(t, c.Close(t.Context()))
	}
	_ = third

	got := s.metrics(t)
	for _, want := range []struct {
		name  string
		unit  string
		key   attribute.Key
		value string
		count uint64
	}{
		{"pglock.lock.grants", "{grant}", "", "", 4},
		{"pglock.lock.grants", "{grant}", "pglock.grant.way", "free", 3},
		{"pglock.lock.grants", "{grant}", "pglock.grant.way", "queue", 1},
		{"pglock.lock.wait_time", "s", "pglock.lock.mode", "exclusive", 4},
		{"pglock.lock.failures", "{attempt}", "error.type", "held", 1},
		{"pglock.queue.place", "{request}", "", "", 1},
		{"pglock.handover.duration", "s", "", "", 1},
		{"pglock.lease.losses", "{lease}", "pglock.loss.reason", "broken", 1},
		{"pglock.lease.outlived_time", "s", "pglock.loss.reason", "broken", 1},
		{"pglock.lease.use_time", "s", "pglock.lease.end", "lost", 1},
		{"pglock.lease.use_time", "s", "pglock.lease.end", "release", 3},
		{"pglock.write.duration", "s", "", "", 2},
		{"pglock.write.token_age", "s", "", "", 4},
		{"pglock.write.stale", "{write}", "", "", 1},
		{"pglock.write.refused", "{write}", "error.type", "lost", 1},
		{"pglock.connection.reconnects", "{connection}", "pglock.connection", "heartbeat", 1},
	} {
		if n := total(got[want.name], want.key, want.value); n != want.count || got[want.name][0].unit != want.unit {
			t.Errorf("%s %s=%s: %d in %v, want %d %s", want.name, want.key, want.value, n, got[want.name], want.count,
				want.unit)
		}
	}
	for _, renewed := range got["pglock.renewal.gap_ratio"] {
		if mean := renewed.sum / float64(renewed.count); renewed.count < 1 || mean <= 0 || mean > 1 {
			t.Errorf("mean gap %v of %d renewals", mean, renewed.count)
		}
	}
	if n := total(got["pglock.renewal.batch_size"], "", ""); n < 2 {
		t.Errorf("%d renewals", n)
	}
}

func TestEventsThatWereDroppedAreCounted(t *testing.T) {
	db := pgtest.Parallel(t)
	s := newTelemetry(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	slow := false
	c := startClient(t, db, pglock.WithObserver(s),
		pglock.WithObserver(pglock.ObserverFunc(func(context.Context, pglock.Event) {
			if !slow { // one goroutine calls it
				slow = true
				close(entered)
				<-leave
			}
		})))
	l := mustAcquire(t.Context(), t, c, "orders/1", pglock.WithTTL(time.Hour)) // no renewal is among what is dropped
	<-entered
	const tries = 1200
	for range tries {
		if _, err := c.TryAcquire(t.Context(), "orders/1"); !errors.Is(err, pglock.ErrHeld) {
			t.Fatal(err)
		}
	}
	close(leave)
	dropped := s.await(t, pglock.EventObserver).Count
	_ = l.Release(t.Context())
	must.Do(t, c.Close(t.Context()))
	got := s.metrics(t)
	seen, lost := total(got["pglock.lock.failures"], "", ""), total(got["pglock.observer.dropped"], "", "")
	if lost == 0 || int(lost) != dropped || seen+lost != tries {
		t.Errorf("%d seen and %d dropped of %d", seen, lost, tries)
	}
}

func TestLabelsOfLocksAreFewAndOffByDefault(t *testing.T) {
	t.Parallel()
	grant := func(name string) pglock.Event {
		return pglock.Event{Kind: pglock.EventGrant, At: time.Now(), Lock: name, Mode: pglock.ModeExclusive, Token: 1}
	}
	const key = attribute.Key("pglock.lock.label")
	none := newTelemetry(t)
	for i := range 10 {
		none.Observe(t.Context(), grant(fmt.Sprint("orders/", i)))
	}
	if all := none.metrics(t)["pglock.lock.grants"]; len(all) != 1 || all[0].attributes.HasValue(key) {
		t.Errorf("without an option: %v", all)
	}
	prefix := newTelemetry(t, otelpglock.WithLockLabel(func(lock string) string {
		label, _, _ := strings.Cut(lock, "/")
		return label
	}))
	for i := range 10 {
		prefix.Observe(t.Context(), grant(fmt.Sprint("orders/", i)))
		prefix.Observe(t.Context(), grant("/x"))
	}
	all := prefix.metrics(t)["pglock.lock.grants"]
	if len(all) != 2 || total(all, key, "orders") != 10 {
		t.Errorf("by prefix: %v", all)
	}
	if stale := prefix.metrics(t)["pglock.write.stale"]; len(stale) != 2 || total(stale, "", "") != 0 {
		t.Errorf("the counters of a new label do not begin with 0: %v", stale)
	}
	each := newTelemetry(t, otelpglock.WithLockLabel(func(lock string) string { return lock }))
	const names = otelpglock.MaxLabels + 50
	for i := range names {
		each.Observe(t.Context(), grant(fmt.Sprint("orders/", i)))
	}
	all = each.metrics(t)["pglock.lock.grants"]
	if len(all) != otelpglock.MaxLabels || total(all, key, otelpglock.OtherLabel) != 51 {
		t.Errorf("%d series, %d of others", len(all), total(all, key, otelpglock.OtherLabel))
	}
}

// Otherwise Prometheus would not see the first time as an increase.
func TestCountersOfWhatIsRareBeginWithZero(t *testing.T) {
	t.Parallel()
	wantZeros(t, newTelemetry(t).metrics(t))
}

// late is an observer of the global provider, which was set after it. A process can do that once.
var late = sync.OnceValues(func() (*telemetry, error) {
	o, err := otelpglock.New()
	s := &telemetry{Observer: o, reader: sdkmetric.NewManualReader()}
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader)))
	return s, err
})

// It is not parallel: others make observers of the global provider, too.
func TestCountersBeginWithZeroAlsoIfTheProviderIsSetAfterNew(t *testing.T) {
	s := must.Get(late())(t)
	s.Observer.Observe(t.Context(), pglock.Event{Kind: pglock.EventGrant, At: time.Now(), Lock: "orders/1",
		Mode: pglock.ModeExclusive, Token: 1})
	wantZeros(t, s.metrics(t))
}

// wantZeros wants the counters of what is rare, with 0.
func wantZeros(t *testing.T, began map[string][]series) {
	t.Helper()
	for name, series := range map[string]int{
		"pglock.lease.losses": 5, "pglock.write.stale": 1, "pglock.write.unknown": 1, "pglock.renewal.late": 1,
		"pglock.renewal.failures":      1,
		"pglock.connection.reconnects": 2, "pglock.connection.fallbacks": 2, "pglock.observer.dropped": 1,
		"pglock.observer.panics": 1,
	} {
		if all := began[name]; len(all) != series || total(all, "", "") != 0 {
			t.Errorf("%s begins with %v", name, all)
		}
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for field, opt := range map[string]otelpglock.Option{"meter provider": otelpglock.WithMeterProvider(nil),
		"tracer provider": otelpglock.WithTracerProvider(nil), "lock label": otelpglock.WithLockLabel(nil),
		"option": nil} {
		_, err := otelpglock.New(opt)
		var bad *pglock.ArgumentError
		if !errors.As(err, &bad) || !errors.Is(err, pglock.ErrInvalid) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := otelpglock.New(); err != nil { // with the global providers
		t.Error(err)
	}
}

// The package's documentation lists every metric with its unit and kind.
func TestTheDocumentationListsTheMetrics(t *testing.T) {
	t.Parallel()
	documented, made := metricsIn(t, "otelpglock.go", `//	(pglock\.\S+) +(\S+) +(histogram|counter) `), metricsIn(t,
		"meters.go", `(histogram|counter)\("(pglock\.[^"]+)", "([^"]+)"`)
	if len(made) != 21 || !slices.Equal(documented, made) {
		t.Errorf("documented: %q\nmade:       %q", documented, made)
	}
}

func metricsIn(t *testing.T, file, pattern string) (found []string) {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
		slices.Sort(m[1:])
		found = append(found, strings.Join(m[1:], " "))
	}
	slices.Sort(found)
	return found
}
