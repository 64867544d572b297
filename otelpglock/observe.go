package otelpglock

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pglock-dev/pglock/pglock"
)

type observer struct {
	meters     *meters
	attributes attributes
	spans      *spans
}

// Observe records one event. It waits for nobody but the providers.
func (o *observer) Observe(ctx context.Context, e pglock.Event) {
	m := o.meters
	of := func(key attribute.Key, value string) metric.MeasurementOption {
		return o.attributes.of(e.Lock, dimensions{mode: string(e.Mode), key: key, value: value, failure: failure(e.Err)})
	}
	plain := func(key attribute.Key, value string) metric.MeasurementOption { // without a lock
		return o.attributes.of("", dimensions{key: key, value: value, failure: failure(e.Err)})
	}
	switch e.Kind {
	case pglock.EventWait:
		m.place.Record(ctx, float64(e.Place), of("", ""))
	case pglock.EventGrant:
		acquire := o.spans.acquire(ctx, e)
		with := of(keyWay, string(e.Way))
		m.wait.Record(acquire, e.Waited.Seconds(), with)
		m.grants.Add(acquire, 1, with)
	case pglock.EventFailed:
		m.failures.Add(o.spans.acquire(ctx, e), 1, of("", ""))

	case pglock.EventRenew:
		m.batch.Record(ctx, float64(e.Count), plain("", ""))
		m.gapOf(ctx, e, of("", ""))
	case pglock.EventRenewLate:
		m.late.Add(ctx, int64(e.Count), plain("", ""))
	case pglock.EventRenewFailed:
		m.renewFailures.Add(ctx, 1, plain("", ""))
		m.gapOf(ctx, e, of("", ""))
	case pglock.EventLost:
		m.losses.Add(ctx, 1, of(keyReason, string(e.Reason)))
		o.ended(ctx, e, "lost")
	case pglock.EventRelease:
		o.ended(ctx, e, "release")
	case pglock.EventOutlived:
		m.outlived.Record(ctx, e.Late.Seconds(), of(keyReason, string(e.Reason)))
	case pglock.EventHandOver:
		if e.Way != pglock.WayTurn {
			m.handOver.Record(ctx, e.Took.Seconds(), of("", ""))
		}

	case pglock.EventWrite:
		with := of("", "")
		m.write.Record(ctx, e.Took.Seconds(), with)
		m.age.Record(ctx, e.Age.Seconds(), with)
	case pglock.EventStale:
		m.stale.Add(ctx, 1, of("", ""))
		m.ageOf(ctx, e, of("", ""))
	case pglock.EventRefused:
		m.refused.Add(ctx, 1, of("", ""))
		m.ageOf(ctx, e, of("", ""))
	case pglock.EventOutcomeUnknown:
		m.unknown.Add(ctx, 1, of("", ""))

	case pglock.EventReconnect:
		m.reconnects.Add(ctx, 1, plain(keyConnection, string(e.Connection)))
	case pglock.EventPolling, pglock.EventUnnamed:
		m.fallbacks.Add(ctx, 1, plain(keyFallback, string(e.Kind)))
	case pglock.EventObserver:
		m.dropped.Add(ctx, int64(e.Count), plain("", ""))
		m.panics.Add(ctx, int64(e.Panics), plain("", ""))
	}
}

// ended notes the end of a lease.
func (o *observer) ended(ctx context.Context, e pglock.Event, how string) {
	o.spans.hold(ctx, e, how)
	o.meters.use.Record(ctx, e.Held.Seconds(),
		o.attributes.of(e.Lock, dimensions{mode: string(e.Mode), key: keyEnd, value: how}))
}

func (m *meters) gapOf(ctx context.Context, e pglock.Event, with metric.MeasurementOption) {
	if e.TTL > 0 {
		m.gap.Record(ctx, e.Gap.Seconds()/e.TTL.Seconds(), with)
	}
}

// ageOf notes the age of the token of a refused write. A Verifier of package fencedhttp does not know it.
func (m *meters) ageOf(ctx context.Context, e pglock.Event, with metric.MeasurementOption) {
	if e.Age > 0 {
		m.age.Record(ctx, e.Age.Seconds(), with)
	}
}
