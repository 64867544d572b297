package otelpglock

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

// meters are the instruments. The package's documentation says what each counts.
type meters struct {
	wait, place, use, outlived, gap, batch, handOver, write, age           metric.Float64Histogram
	grants, failures, losses, late, renewFailures, stale, refused, unknown metric.Int64Counter
	reconnects, fallbacks, dropped, panics                                 metric.Int64Counter
}

// Boundaries of histograms.
var (
	fine = []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800}
	long = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600}
	// a heartbeat renews after a third
	parts  = []float64{0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.67, 0.75, 0.85, 0.95, 1}
	counts = []float64{1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000}
	places = []float64{1, 2, 3, 5, 10, 20, 50, 99} // above is 100 or more
)

func newMeters(m metric.Meter) (*meters, error) {
	var errs []error
	histogram := func(name, unit, description string, boundaries []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(boundaries...))
		errs = append(errs, err)
		return h
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	all := &meters{
		wait: histogram("pglock.lock.wait_time", "s", "The time from a call to its lease.", long),
		place: histogram("pglock.queue.place", "{request}", "The place in the queue when a call begins to wait, "+
			"up to 100.", places),
		use:      histogram("pglock.lease.use_time", "s", "The time from the grant to the end of a lease.", long),
		outlived: histogram("pglock.lease.outlived_time", "s", "How long work went on after its lease was lost.", long),
		gap: histogram("pglock.renewal.gap_ratio", "1", "The time between two renewals as a part of the TTL.",
			parts),
		batch: histogram("pglock.renewal.batch_size", "{lease}", "The number of leases that one statement renewed.",
			counts),
		handOver: histogram("pglock.handover.duration", "s", "The time from the request that ends a lease until the "+
			"next holders are notified.", fine),
		write: histogram("pglock.write.duration", "s", "The duration of fenced transactions that were committed.",
			fine),
		age: histogram("pglock.write.token_age", "s", "The time from a grant to a write under it, or to its refusal.",
			long),

		grants:   counter("pglock.lock.grants", "{grant}", "The number of leases that calls got."),
		failures: counter("pglock.lock.failures", "{attempt}", "The number of calls that did not get the lock."),
		losses:   counter("pglock.lease.losses", "{lease}", "The number of leases that were lost."),
		late: counter("pglock.renewal.late", "{lease}", "The number of leases that were renewed after more "+
			"than two thirds of their TTL."),
		renewFailures: counter("pglock.renewal.failures", "{attempt}",
			"The number of statements that could not renew."),
		stale: counter("pglock.write.stale", "{write}", "The number of writes that a fence refused because a "+
			"greater token had written."),
		refused: counter("pglock.write.refused", "{write}", "The number of writes that were refused for another "+
			"reason."),
		unknown: counter("pglock.write.unknown", "{write}", "The number of writes with an unknown outcome."),
		reconnects: counter("pglock.connection.reconnects", "{connection}", "The number of own connections that were "+
			"lost and replaced."),
		fallbacks: counter("pglock.connection.fallbacks", "{event}", "Events of polling instead of notifications, or "+
			"of statements without names."),
		dropped: counter("pglock.observer.dropped", "{event}", "The number of events that were dropped because the "+
			"observer was slow."),
		panics: counter("pglock.observer.panics", "{panic}", "The number of panics of observers."),
	}
	return all, errors.Join(errs...)
}
