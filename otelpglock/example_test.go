package otelpglock_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/otelpglock"
	"github.com/pglock-dev/pglock/pglock"
)

func Example() {
	ctx := context.Background()
	reader := sdkmetric.NewManualReader() // in production, a PeriodicReader with an exporter, or that of Prometheus
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	defer func() { _ = meters.Shutdown(ctx) }()
	observer, err := otelpglock.New(
		otelpglock.WithMeterProvider(meters), // without it, the global one
		otelpglock.WithLockLabel(func(lock string) string { // "accounts/16" counts as "accounts"
			kind, _, _ := strings.Cut(lock, "/")
			return kind
		}))
	if err != nil {
		log.Fatal(err)
	}

	pool, err := pgxpool.New(ctx, pgtest.URL()) // yours comes from DATABASE_URL
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool, pglock.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	err = client.Do(ctx, "accounts/16", func(context.Context, *pglock.Lease) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Close(ctx); err != nil { // which delivers the last events
		log.Fatal(err)
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if grants, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "pglock.lock.grants" {
			point := grants.DataPoints[0]
			label, _ := point.Attributes.Value("pglock.lock.label")
			fmt.Println(m.Name, point.Value, label.AsString())
		}
	}
	// Output: pglock.lock.grants 1 accounts
}
