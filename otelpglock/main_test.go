package otelpglock_test

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/otelpglock"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// telemetry is an observer whose metrics and spans can be read.
type telemetry struct {
	pglock.Observer
	reader *sdkmetric.ManualReader
	meters *sdkmetric.MeterProvider
	traces *sdktrace.TracerProvider
	spans  *tracetest.InMemoryExporter
	events chan pglock.Event // after they were observed
}

func newTelemetry(t testing.TB, opts ...otelpglock.Option) *telemetry {
	t.Helper()
	s := &telemetry{reader: sdkmetric.NewManualReader(), spans: tracetest.NewInMemoryExporter(),
		events: make(chan pglock.Event, 10_000)}
	s.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader))
	s.traces = sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.spans))
	t.Cleanup(func() {
		_ = s.meters.Shutdown(context.Background())
		_ = s.traces.Shutdown(context.Background())
	})
	o := must.Get(otelpglock.New(append([]otelpglock.Option{otelpglock.WithMeterProvider(s.meters),
		otelpglock.WithTracerProvider(s.traces)}, opts...)...))(t)
	s.Observer = o
	return s
}

func (s *telemetry) Observe(ctx context.Context, e pglock.Event) {
	s.Observer.Observe(ctx, e)
	s.events <- e
}

// await waits until the observer has seen an event of this kind.
func (s *telemetry) await(t testing.TB, kind pglock.EventKind) pglock.Event {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case e := <-s.events:
			if e.Kind == kind {
				return e
			}
		case <-timeout:
			t.Fatalf("no event %q", kind)
		}
	}
}

// series is one series of a metric.
type series struct {
	unit       string
	attributes attribute.Set
	count      uint64  // of a histogram; of a counter its value
	sum        float64 // of a histogram
	above      uint64  // of a histogram, how many are greater than its last boundary
}

func (s *telemetry) metrics(t testing.TB) map[string][]series {
	t.Helper()
	var all metricdata.ResourceMetrics
	must.Do(t, s.reader.Collect(context.Background(), &all))
	found := map[string][]series{}
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name != otelpglock.Name {
			t.Errorf("scope %q", scope.Scope.Name)
		}
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					found[m.Name] = append(found[m.Name], series{m.Unit, p.Attributes, uint64(p.Value), 0, 0})
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					found[m.Name] = append(found[m.Name], series{m.Unit, p.Attributes, p.Count, p.Sum,
						p.BucketCounts[len(p.BucketCounts)-1]})
				}
			default:
				t.Errorf("%s is a %T", m.Name, m.Data)
			}
		}
	}
	return found
}

func startClient(t testing.TB, db *pgtest.DB, opts ...pglock.Option) *pglock.Client {
	t.Helper()
	c := must.Get(pglock.New(t.Context(), db.Pool(t), opts...))(t)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func mustAcquire(ctx context.Context, t testing.TB, c *pglock.Client, name string,
	opts ...pglock.AcquireOption) *pglock.Lease {
	t.Helper()
	l := must.Get(c.Acquire(ctx, name, opts...))(t)
	return l
}
