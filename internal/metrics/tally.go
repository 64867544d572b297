package metrics

import (
	"context"
	"maps"
	"time"

	"github.com/pglock-dev/pglock/lockadmin"
)

// tally counts events that appear in the history. Its numbers never go down when the history is pruned, as numbers of
// rows would. Events become visible out of order, so it asks again for those of the last minutes, and remembers which
// of them it has counted.
type tally struct {
	started bool
	totalOf map[lockadmin.EventKind]float64
	seen    map[int64]struct{} // counted events with an ID above floor
	floor   int64              // nothing up to here is asked for any more
	marks   []mark             // in order of time; the next floors
}

// mark is the greatest ID that was drawn at a time.
type mark struct {
	at time.Time
	id int64
}

type history interface {
	RecentHistory(ctx context.Context, after int64) ([]lockadmin.HistoryEntry, int64, error)
}

func newTally() tally {
	t := tally{totalOf: map[lockadmin.EventKind]float64{}}
	for _, kind := range []lockadmin.EventKind{lockadmin.EventTakeover, lockadmin.EventBreak, lockadmin.EventOverlap,
		lockadmin.EventBypass, lockadmin.EventEpoch} {
		t.totalOf[kind] = 0 // so that the first event is an increase
	}
	return t
}

// count counts the events that are new. What was there before the first call does not count.
func (t *tally) count(ctx context.Context, from history, now time.Time) error {
	after := t.floor
	if !t.started {
		after = 1<<63 - 1
	}
	events, greatest, err := from.RecentHistory(ctx, after)
	if err != nil {
		return err
	}
	if last := t.last(); !t.started || greatest < last { // another database, or an older copy of it
		t.started, t.floor, t.seen, t.marks = true, greatest, map[int64]struct{}{}, nil
		return nil
	}
	for _, e := range events {
		if _, known := t.seen[e.ID]; !known {
			t.seen[e.ID] = struct{}{}
			t.totalOf[e.Kind]++
			greatest = max(greatest, e.ID)
		}
	}
	t.marks = append(t.marks, mark{now, greatest})
	for len(t.marks) > 0 && (now.Sub(t.marks[0].at) >= lateCommit || len(t.seen) > mostSeen) {
		t.floor = max(t.floor, t.marks[0].id)
		t.marks = t.marks[1:]
		maps.DeleteFunc(t.seen, func(id int64, _ struct{}) bool { return id <= t.floor })
	}
	return nil
}

// last is the greatest ID that is known to have been drawn.
func (t *tally) last() int64 {
	if len(t.marks) == 0 {
		return t.floor
	}
	return t.marks[len(t.marks)-1].id
}

func (t *tally) totals() map[lockadmin.EventKind]float64 { return maps.Clone(t.totalOf) }
