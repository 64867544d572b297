package otelpglock

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

const schemaURL = semconv.SchemaURL

// The attributes of this package.
const (
	keyMode       = attribute.Key("pglock.lock.mode")
	keyLabel      = attribute.Key("pglock.lock.label")
	keyName       = attribute.Key("pglock.lock.name")
	keyHolder     = attribute.Key("pglock.lock.holder")
	keySlot       = attribute.Key("pglock.lock.slot")
	keyToken      = attribute.Key("pglock.lock.token")
	keyPlace      = attribute.Key("pglock.queue.place")
	keyWay        = attribute.Key("pglock.grant.way")
	keyEnd        = attribute.Key("pglock.lease.end")
	keyReason     = attribute.Key("pglock.loss.reason")
	keyConnection = attribute.Key("pglock.connection")
	keyFallback   = attribute.Key("pglock.fallback")
)

// way says how a lock came to a call.
func way(e pglock.Event) string {
	if e.Place > 0 {
		return "queue"
	}
	return "free"
}

// dimensions are the attributes of one measurement; "" is none.
type dimensions struct {
	label, mode string
	key         attribute.Key // one more attribute
	value       string
	failure     string
}

// attributes makes each set of attributes once. Several clients may use it at the same time.
type attributes struct {
	label func(lock string) string

	// begin is called once for each label, "" included, before the first measurement with it.
	begin func(label string)

	mu     sync.Mutex
	labels map[string]struct{}
	sets   map[dimensions]metric.MeasurementOption // few: every field has few values
}

// of gives the attributes of a measurement about a lock, or, with lock "", about none.
func (a *attributes) of(lock string, d dimensions) metric.MeasurementOption {
	if a.label != nil && lock != "" {
		var isNew bool
		if d.label, isNew = a.bound(a.label(lock)); isNew {
			a.begin(d.label)
		}
	}
	return a.option(d)
}

// bound gives the label that is used for a label, and whether it is new.
func (a *attributes) bound(label string) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.labels[label]; !known && len(a.labels) >= MaxLabels {
		label = OtherLabel
	}
	_, known := a.labels[label]
	a.labels[label] = struct{}{}
	return label, !known
}

// option makes each set of attributes once.
func (a *attributes) option(d dimensions) metric.MeasurementOption {
	a.mu.Lock()
	defer a.mu.Unlock()
	option, known := a.sets[d]
	if !known {
		option = metric.WithAttributeSet(d.set())
		a.sets[d] = option
	}
	return option
}

func (d dimensions) set() attribute.Set {
	all := []attribute.KeyValue{semconv.DBSystemNamePostgreSQL}
	add := func(key attribute.Key, value string) {
		if value != "" {
			all = append(all, key.String(value))
		}
	}
	add(keyLabel, d.label)
	add(keyMode, d.mode)
	if d.key != "" {
		add(d.key, d.value)
	}
	add(semconv.ErrorTypeKey, d.failure)
	return attribute.NewSet(all...)
}

// failures are the errors that have a name of their own, the more special first.
var failures = []struct {
	err  error
	name string
}{
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
	{pglock.ErrSelfDeadlock, "self_deadlock"},
	{pglock.ErrDeadlock, "deadlock"},
	{pglock.ErrLimit, "limit"},
	{pglock.ErrClosed, "closed"},
	{pglock.ErrWrongDatabase, "wrong_database"},
	{pglock.ErrSchema, "schema"},
	{pglock.ErrPermission, "permission"},
	{pglock.ErrReadOnly, "read_only"},
	{pglock.ErrOutcomeUnknown, "outcome_unknown"},
	{fencedstore.ErrStaleToken, "stale_token"},
	{pglock.ErrReleased, "released"},
	{pglock.ErrLost, "lost"},
	{pglock.ErrHeld, "held"},
}

// failure names an error in error.type, with few values as the semantic conventions demand.
func failure(err error) string {
	if err == nil {
		return ""
	}
	for _, f := range failures {
		if errors.Is(err, f.err) {
			return f.name
		}
	}
	return "_OTHER"
}
