package pglock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/listener"
)

const (
	// loggedMost limits the lines of one kind in each loggedEvery.
	loggedMost  = 20
	loggedEvery = time.Minute
	// pollingLong is for how long a client polls before a person hears of it, if the server cannot be reached.
	pollingLong = 10 * time.Second
)

// SlogObserver makes an observer that logs what a person must act on. Make one for each client. A nil logger is
// slog.Default. It logs
//
//   - as errors: work that went on after the loss of its lease, for longer than a twentieth of the TTL and at most a
//     second; a fenced write whose outcome is unknown;
//   - as warnings: a lost lease; a late renewal; renewals that fail until half of a TTL is over; a stale token; a
//     refused fenced write, unless its lease was lost or released; polling, if it lasts for ten seconds or the
//     connection hears nothing; unnamed statements for the second time in a row; dropped events and panics of an
//     observer;
//   - as information: that renewals work, or notifications arrive, again after such a warning; that a lease has been
//     renewed for longer than an hour;
//   - for debugging: all other events.
//
// Of each kind it logs up to 20 lines a minute, except for debugging. Then it logs how many more there were.
func SlogObserver(logger *slog.Logger) Observer {
	if logger == nil {
		logger = slog.Default()
	}
	return &slogObserver{logger: logger, lines: make(map[EventKind]lines)}
}

type slogObserver struct {
	logger *slog.Logger

	mu      sync.Mutex // guards what follows; not held while the logger is called
	failing *Event     // the last failure to renew since it has warned of one, until that lease is renewed
	over    bool       // that lease has ended
	polling bool       // it has warned that the client polls
	lines   map[EventKind]lines
}

// lines are how many lines of one kind there were since a moment.
type lines struct {
	kind  EventKind
	since time.Time
	count int
}

// Observe implements Observer.
func (o *slogObserver) Observe(ctx context.Context, e Event) {
	level, text, skipped := o.judge(e)
	for _, s := range skipped {
		o.logger.LogAttrs(ctx, slog.LevelWarn, "pglock: more events of this kind were not logged",
			slog.String("kind", string(s.kind)), slog.Int("count", s.count-loggedMost))
	}
	if text != "" && o.logger.Enabled(ctx, level) {
		o.logger.LogAttrs(ctx, level, "pglock: "+text, attributes(e)...)
	}
}

// judge says how to log an event, and what was not logged before it. Without a text the event is not logged.
func (o *slogObserver) judge(e Event) (level slog.Level, text string, skipped []lines) {
	o.mu.Lock()
	defer o.mu.Unlock()
	level, text = o.weigh(e)
	for kind, l := range o.lines {
		if e.At.Sub(l.since) >= loggedEvery {
			if delete(o.lines, kind); l.count > loggedMost {
				skipped = append(skipped, l)
			}
		}
	}
	if level > slog.LevelDebug {
		l := o.lines[e.Kind]
		if l.count == 0 {
			l.kind, l.since = e.Kind, e.At
		}
		if l.count++; l.count > loggedMost {
			text = ""
		}
		o.lines[e.Kind] = l
	}
	return level, text, skipped
}

// weigh says how much an event matters to people, and in which words to tell them. The caller has the mutex.
func (o *slogObserver) weigh(e Event) (slog.Level, string) {
	f := o.failing
	it := f != nil && f.Lock == e.Lock && f.Slot == e.Slot && f.Token == e.Token
	switch e.Kind {
	case EventOutlived:
		if e.Late > min(e.TTL/20, time.Second) {
			return slog.LevelError, "work went on after its lease was lost"
		}
	case EventOutcomeUnknown:
		return slog.LevelError, "nobody could say whether a fenced write was committed"
	case EventRelease:
		o.over = o.over || it
	case EventLost:
		o.over = o.over || it
		return slog.LevelWarn, "a lease was lost"
	case EventHeldLong:
		return slog.LevelInfo, "a lease has been renewed for longer than an hour, does its program still need it?"
	case EventRenewLate:
		return slog.LevelWarn, "leases were renewed late"
	case EventRenewFailed:
		if e.Gap >= e.TTL/2 {
			warned := f != nil && !o.isOver(e.At)
			o.failing = &e
			if o.over = false; !warned {
				return slog.LevelWarn, "renewals fail, and leases will be lost if that lasts"
			}
		}
	case EventRenew:
		if it || f != nil && o.isOver(e.At) {
			o.failing = nil
			return slog.LevelInfo, "renewals work again"
		}
	case EventStale:
		return slog.LevelWarn, "a write with a stale token was refused"
	case EventRefused:
		if e.Lock != "" && !errors.Is(e.Err, ErrLost) && !errors.Is(e.Err, ErrReleased) {
			return slog.LevelWarn, "a fenced write was refused"
		}
	case EventPolling:
		if !o.polling && (e.Took >= pollingLong || errors.Is(e.Err, listener.ErrDeaf)) {
			o.polling = true
			return slog.LevelWarn, "no notifications arrive, so waiting calls poll"
		}
	case EventReconnect:
		if o.polling && e.Connection == connectionListener {
			o.polling = false
			return slog.LevelInfo, "notifications arrive again"
		}
	case EventUnnamed:
		if e.Count > 1 {
			return slog.LevelWarn, "prepared statements get lost, so statements go without names, which is slower"
		}
	case EventObserver:
		return slog.LevelWarn, "an observer was too slow, or panicked"
	}
	return slog.LevelDebug, string(e.Kind)
}

// isOver reports whether the lease that could not be renewed has ended by t. If the observer has missed that, nothing
// more is heard of the lease: the next attempt to renew one that goes on comes within its TTL.
func (o *slogObserver) isOver(t time.Time) bool {
	return o.over || t.Sub(o.failing.At) >= o.failing.TTL
}

// attributes are the fields of an event that are set.
func attributes(e Event) (all []slog.Attr) {
	text := func(key, value string) {
		if value != "" {
			all = append(all, slog.String(key, value))
		}
	}
	number := func(key string, value int64) {
		if value != 0 {
			all = append(all, slog.Int64(key, value))
		}
	}
	duration := func(key string, value time.Duration) {
		if value != 0 {
			all = append(all, slog.Duration(key, value))
		}
	}
	text("lock", e.Lock)
	text("mode", string(e.Mode))
	number("slot", int64(e.Slot))
	number("token", int64(e.Token))
	text("holder", e.Holder)
	duration("ttl", e.TTL)
	number("place", int64(e.Place))
	duration("waited", e.Waited)
	duration("held", e.Held)
	text("reason", string(e.Reason))
	duration("late", e.Late)
	duration("gap", e.Gap)
	text("resource", e.Resource)
	number("last_token", int64(e.LastToken))
	duration("age", e.Age)
	text("connection", e.Connection)
	number("count", int64(e.Count))
	number("panics", int64(e.Panics))
	duration("took", e.Took)
	if e.Err != nil {
		all = append(all, slog.String("err", e.Err.Error()))
	}
	return all
}
