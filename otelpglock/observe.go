package otelpglock

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pglock-dev/pglock/pglock"
)

type observer struct {
	meters     *meters
	attributes attributes
	spans      *spans
	first      sync.Once // event
}

// begin makes the series of what is rare, so that the first time is an increase.
func (o *observer) begin(label string) {
	ctx, m := context.Background(), o.meters // nobody called
	with := func(key attribute.Key, value string) metric.MeasurementOption {
		return o.attributes.option(dimensions{label: label, key: key, value: value})
	}
	for _, reason := range []pglock.Reason{
		pglock.ReasonExpired, pglock.ReasonBroken, pglock.ReasonTakenOver, pglock.ReasonReleased, pglock.ReasonUnknown,
	} {
		m.losses.Add(ctx, 0, with(keyReason, string(reason)))
	}
	m.stale.Add(ctx, 0, with("", ""))
	m.unknown.Add(ctx, 0, with("", ""))
	if label != "" {
		return
	}
	for _, counter := range []metric.Int64Counter{m.late, m.renewFailures, m.dropped, m.panics} {
		counter.Add(ctx, 0, with("", ""))
	}
	for _, connection := range []string{"heartbeat", "listener"} {
		m.reconnects.Add(ctx, 0, with(keyConnection, connection))
	}
	for _, kind := range []pglock.EventKind{pglock.EventPolling, pglock.EventUnnamed} {
		m.fallbacks.Add(ctx, 0, with(keyFallback, string(kind)))
	}
}

// Observe records one event. It waits for nobody but the providers.
func (o *observer) Observe(ctx context.Context, e pglock.Event) {
	// The global provider forgets what came before the application has set it.
	o.first.Do(func() { o.begin("") })
	m, mode := o.meters, string(e.Mode)
	of := func(d dimensions) metric.MeasurementOption { return o.attributes.of(e.Lock, d) }
	plain := func(d dimensions) metric.MeasurementOption { return o.attributes.of("", d) } // without a lock
	switch e.Kind {
	case pglock.EventWait:
		m.place.Record(ctx, float64(e.Place), of(dimensions{mode: mode}))
	case pglock.EventGrant:
		acquire := o.spans.acquire(ctx, e)
		with := of(dimensions{mode: mode, key: keyWay, value: way(e)})
		m.wait.Record(acquire, e.Waited.Seconds(), with)
		m.grants.Add(acquire, 1, with)
	case pglock.EventFailed:
		m.failures.Add(o.spans.acquire(ctx, e), 1, of(dimensions{mode: mode, failure: failure(e.Err)}))

	case pglock.EventRenew:
		m.batch.Record(ctx, float64(e.Count), plain(dimensions{}))
		if with := of(dimensions{mode: mode}); e.TTL > 0 {
			m.gap.Record(ctx, e.Gap.Seconds()/e.TTL.Seconds(), with)
		}
	case pglock.EventRenewLate:
		m.late.Add(ctx, int64(e.Count), plain(dimensions{}))
	case pglock.EventRenewFailed:
		m.renewFailures.Add(ctx, 1, plain(dimensions{}))
	case pglock.EventLost:
		m.losses.Add(ctx, 1, of(dimensions{key: keyReason, value: string(e.Reason)}))
		o.ended(ctx, e, "lost")
	case pglock.EventRelease:
		o.ended(ctx, e, "release")
	case pglock.EventOutlived:
		m.outlived.Record(ctx, e.Late.Seconds(), of(dimensions{mode: mode, key: keyReason, value: string(e.Reason)}))
	case pglock.EventHandOver:
		if e.Took > 0 { // else nobody knows it
			m.handOver.Record(ctx, e.Took.Seconds(), of(dimensions{}))
		}

	case pglock.EventWrite:
		with := of(dimensions{mode: mode})
		m.write.Record(ctx, e.Took.Seconds(), with)
		m.age.Record(ctx, e.Age.Seconds(), with)
	case pglock.EventStale:
		if e.LastToken == e.Token { // this grant itself has written: nobody is late
			m.refused.Add(ctx, 1, of(dimensions{mode: mode, failure: failure(e.Err)}))
		} else {
			m.stale.Add(ctx, 1, of(dimensions{}))
		}
		m.ageOf(ctx, e, of(dimensions{mode: mode, failure: failure(e.Err)}))
	case pglock.EventRefused:
		with := of(dimensions{mode: mode, failure: failure(e.Err)})
		m.refused.Add(ctx, 1, with)
		m.ageOf(ctx, e, with)
	case pglock.EventOutcomeUnknown:
		m.unknown.Add(ctx, 1, of(dimensions{}))

	case pglock.EventReconnect:
		m.reconnects.Add(ctx, 1, plain(dimensions{key: keyConnection, value: e.Connection}))
	case pglock.EventPolling, pglock.EventUnnamed:
		m.fallbacks.Add(ctx, 1, plain(dimensions{key: keyFallback, value: string(e.Kind)}))
	case pglock.EventObserver:
		m.dropped.Add(ctx, int64(e.Count), plain(dimensions{}))
		m.panics.Add(ctx, int64(e.Panics), plain(dimensions{}))
	}
}

// ended notes the end of a lease.
func (o *observer) ended(ctx context.Context, e pglock.Event, how string) {
	o.spans.hold(ctx, e, how)
	o.meters.use.Record(ctx, e.Held.Seconds(),
		o.attributes.of(e.Lock, dimensions{mode: string(e.Mode), key: keyEnd, value: how}))
}

// ageOf notes the age of the token of a refused write. A Verifier of package fencedhttp does not know it.
func (m *meters) ageOf(ctx context.Context, e pglock.Event, with metric.MeasurementOption) {
	if e.Age > 0 {
		m.age.Record(ctx, e.Age.Seconds(), with)
	}
}
