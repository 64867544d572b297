package otelpglock_test

import (
	"context"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/otelpglock"
	"github.com/pglock-dev/pglock/pglock"
)

// What an observer costs per acquire and release, with an exporter that drops everything. -count 20 runs them in turns.
func BenchmarkAcquireRelease(b *testing.B) {
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	for _, c := range []struct {
		name string
		opts []otelpglock.Option
	}{
		{"none", nil},
		{"metrics", []otelpglock.Option{otelpglock.WithMeterProvider(meters)}},
		{"metrics and traces", []otelpglock.Option{otelpglock.WithMeterProvider(meters),
			otelpglock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{})))}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var opts []pglock.Option
			if c.opts != nil {
				o := must.Get(otelpglock.New(c.opts...))(b)
				opts = append(opts, pglock.WithObserver(o))
			}
			client := startClient(b, pgtest.Database(b), opts...)
			for b.Loop() {
				must.Do(b, mustAcquire(b.Context(), b, client, "orders/1").Release(b.Context()))
			}
		})
	}
}

// What the observer does for one acquire and release, in the goroutine that the client has for it.
func BenchmarkObserve(b *testing.B) {
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	meters := otelpglock.WithMeterProvider(provider)
	for name, opts := range map[string][]otelpglock.Option{
		"metrics": {meters},
		"metrics and traces": {meters,
			otelpglock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{})))},
	} {
		b.Run(name, func(b *testing.B) {
			o := must.Get(otelpglock.New(opts...))(b)
			e := pglock.Event{Lock: "orders/1", Mode: pglock.ModeExclusive, Token: 1, Holder: "me"}
			b.ReportAllocs()
			for b.Loop() {
				e.Kind = pglock.EventGrant
				o.Observe(b.Context(), e)
				e.Kind = pglock.EventRelease
				o.Observe(b.Context(), e)
			}
		})
	}
}

type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }
