package metrics

import (
	"context"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
)

// fake is a history of events that are visible, and the greatest ID that was drawn.
type fake struct {
	visible  []int64
	greatest int64
	after    int64 // of the last question
}

func (f *fake) RecentHistory(_ context.Context, after int64) (events []lockadmin.HistoryEntry, greatest int64,
	_ error) {
	f.after = after
	for _, id := range f.visible {
		if id > after {
			events = append(events, lockadmin.HistoryEntry{ID: id, Kind: lockadmin.EventBreak})
		}
	}
	return events, f.greatest, nil
}

func TestEventsAreCountedOnceInWhateverOrderTheyAppear(t *testing.T) {
	f, counted, now := &fake{visible: []int64{1, 2, 3}, greatest: 5}, newTally(), time.Now()
	step := func(what string, after time.Duration, want float64) {
		t.Helper()
		now = now.Add(after)
		must.Do(t, counted.count(t.Context(), f, now))
		if got := counted.totals()[lockadmin.EventBreak]; got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	step("what was there before", 0, 0)
	f.visible, f.greatest = []int64{1, 2, 3, 7, 9}, 9
	step("two events", time.Second, 2)
	step("the same again", time.Second, 2)
	f.visible = []int64{1, 2, 3, 7, 8, 9}
	step("one that was committed late", time.Minute, 3)
	f.visible = nil
	step("all were pruned", time.Second, 3)
	f.greatest = 20
	f.visible = []int64{20}
	step("another", time.Second, 4)
	step("long after", 10*time.Minute, 4)
	step("long after", time.Second, 4)
	if f.after != 9 && f.after != 20 || len(counted.seen) > 1 {
		t.Errorf("asked for events after %d, remembers %d", f.after, len(counted.seen))
	}
	f.greatest = 30
	step("nothing", time.Second, 4)
	f.visible, f.greatest = []int64{20, 40}, 40
	step("another", time.Minute, 5)
	step("the same, two minutes after the greatest was 30", time.Minute, 5)
	f.visible = []int64{20, 35, 40}
	step("one that was committed later than a greater one", 10*time.Second, 6)
	f.visible, f.greatest = []int64{3, 4}, 4
	step("an older copy of the database", time.Second, 6)
	f.visible, f.greatest = []int64{3, 4, 5}, 5
	step("its next event", time.Second, 7)
}
