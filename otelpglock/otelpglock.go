// Package otelpglock reports what happens to the locks of a pglock.Client as OpenTelemetry metrics and traces.
//
//	observer, err := otelpglock.New()
//	client, err := pglock.New(ctx, pool, pglock.WithObserver(observer))
//
// It is a module of its own, so that programs without OpenTelemetry do not depend on it.
//
// # Metrics
//
// Names and units follow OpenTelemetry's semantic conventions, as far as there are some for databases. A histogram's
// count is the number of its events.
//
//	pglock.lock.wait_time          s          histogram  from the call to the lease, of calls that got the lock
//	pglock.lock.grants             {grant}    counter    leases that calls got
//	pglock.lock.failures           {attempt}  counter    calls that did not get the lock
//	pglock.queue.place             {request}  histogram  place in the queue when a call begins to wait, up to 100
//	pglock.lease.use_time          s          histogram  from the grant to the end of the lease
//	pglock.lease.losses            {lease}    counter    leases that were lost
//	pglock.lease.outlived_time     s          histogram  how long work went on after its lease was lost
//	pglock.renewal.gap_ratio       1          histogram  time between two renewals, as a part of the TTL
//	pglock.renewal.batch_size      {lease}    histogram  leases that one statement renewed
//	pglock.renewal.late            {lease}    counter    leases that were renewed after two thirds of their TTL
//	pglock.renewal.failures        {attempt}  counter    statements that could not renew
//	pglock.handover.duration       s          histogram  from the request that ends a lease to the notification
//	pglock.write.duration          s          histogram  fenced transactions that were committed
//	pglock.write.token_age         s          histogram  time from the grant to the write or its refusal
//	pglock.write.stale             {write}    counter    writes that a fence refused after a greater token
//	pglock.write.refused           {write}    counter    writes that were refused for another reason
//	pglock.write.unknown           {write}    counter    writes of which nobody could say whether they were committed
//	pglock.connection.reconnects   {connection}  counter connections of the client's own that were lost and replaced
//	pglock.connection.fallbacks    {event}    counter    see below
//	pglock.observer.dropped        {event}    counter    events that were dropped because the observer was slow
//	pglock.observer.panics         {panic}    counter    panics of observers
//
// pglock.connection.fallbacks grows at once and at least once a minute while a client hears no notifications, and each
// time it sends statements without names.
//
// Attributes, each with few values: pglock.lock.mode; pglock.grant.way (free, queue); pglock.lease.end (release, lost);
// pglock.loss.reason; pglock.connection (heartbeat, listener); pglock.fallback (polling, unnamed statements);
// error.type. Every metric has db.system.name. The names of locks are in no metric unless WithLockLabel puts them
// there.
//
// Counters of what is rare begin with 0, so that Prometheus sees the first time as an increase: all but grants,
// failures and pglock.write.refused.
//
// # Traces
//
// Each call that asks for a lock has a span "pglock.acquire", from the call to its answer. Each lease has a span
// "pglock.hold", from its grant to its end, with a link to its pglock.acquire. Both are children of the span in the
// context of the call that acquires; a hold that outlasts its parent is in the same trace. They have the lock's name,
// the holder's label and the token as attributes. The observer makes them when the event arrives, with the times of the
// event, so the context of your work does not contain them.
package otelpglock

import (
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/pglock-dev/pglock/pglock"
)

// Name is the instrumentation scope of all metrics and traces.
const Name = "github.com/pglock-dev/pglock/otelpglock"

// MaxLabels is how many different labels of WithLockLabel an observer uses, "" among them.
const MaxLabels = 200

// OtherLabel stands for all labels after the first MaxLabels.
const OtherLabel = "_OTHER"

// Option configures New.
type Option func(*config) error

type config struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	label   func(lock string) string
}

// WithMeterProvider sets where the metrics go. Defaults to otel.GetMeterProvider().
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) error {
		c.meters = p
		if p == nil {
			return &pglock.ArgumentError{Field: "meter provider", Value: "nil", Rule: "be a metric.MeterProvider"}
		}
		return nil
	}
}

// WithTracerProvider sets where the traces go. Defaults to otel.GetTracerProvider().
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) error {
		c.tracers = p
		if p == nil {
			return &pglock.ArgumentError{Field: "tracer provider", Value: "nil", Rule: "be a trace.TracerProvider"}
		}
		return nil
	}
}

// WithLockLabel gives the metrics of locks, leases and writes an attribute pglock.lock.label, as f returns it for the
// name of a lock; "" is none. Each label makes a series of its own, so return few: the part of the name before the
// number, for instance. After MaxLabels different ones all others become OtherLabel. An observer calls f for each
// event, from the goroutine of the client. Defaults to none.
func WithLockLabel(f func(lock string) string) Option {
	return func(c *config) error {
		c.label = f
		if f == nil {
			return &pglock.ArgumentError{Field: "lock label", Value: "nil", Rule: "be a function"}
		}
		return nil
	}
}

// New makes an observer for pglock.WithObserver. Several clients may share one. It has no goroutines and nothing to
// close; the providers stay the caller's.
//
// Errors: pglock.ErrInvalid, or the meter's error about an instrument.
func New(opts ...Option) (pglock.Observer, error) {
	c := config{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider()}
	for _, o := range opts {
		if o == nil {
			return nil, &pglock.ArgumentError{Field: "option", Value: "nil", Rule: "be an option of this package"}
		}
		if err := o(&c); err != nil {
			return nil, err
		}
	}
	meters, err := newMeters(c.meters.Meter(Name, metric.WithSchemaURL(schemaURL)))
	if err != nil {
		return nil, fmt.Errorf("otelpglock: make the instruments: %w", err)
	}
	o := &observer{meters: meters, spans: newSpans(c.tracers.Tracer(Name, trace.WithSchemaURL(schemaURL)))}
	o.attributes = attributes{label: c.label, begin: o.begin, labels: map[string]struct{}{"": {}},
		sets: map[dimensions]metric.MeasurementOption{}}
	o.begin("")
	return o, nil
}
