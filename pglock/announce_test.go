package pglock

import (
	"testing"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// What one statement has handed to very many is announced in calls that the server takes.
func TestManyGrantsAreAnnouncedInSeveralCalls(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		var h protocol.Handed
		const slots = 25_000
		for slot := range slots {
			h.Slots = append(h.Slots, slot+1)
		}
		c.tell(t.Context(), "report", h, nil)
		told := 0
		for _, call := range s.of("announce") {
			if len(call.names) > 10_000 || len(call.slots) != len(call.names) {
				t.Errorf("%d names and %d slots in one call", len(call.names), len(call.slots))
			}
			for _, slot := range call.slots {
				if told++; *slot != told {
					t.Fatalf("slot %d, want %d", *slot, told)
				}
			}
		}
		if told != slots {
			t.Errorf("%d slots were announced, want %d", told, slots)
		}
	})
}

// Slot 0 beside others is not a grant: it makes the server tell the next in the queue to ask.
func TestTheObserverHearsHowManyCallsGotTheLock(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		var n notes
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		for _, tc := range []struct {
			protocol.Handed
			calls int
		}{
			{protocol.Handed{Slots: []int{0}}, 1},
			{protocol.Handed{Announced: true}, 1},
			{protocol.Handed{Slots: []int{1, 2, 0}}, 2},
			{protocol.Handed{Hints: []string{"1", "2", "3"}, Slots: []int{0}}, 3},
			{protocol.Handed{Hints: []string{"1"}, Announced: true}, 1},
		} {
			var others announcement
			if c.hear("report", tc.Handed, nil, &others); others.handed[0].calls != tc.calls {
				t.Errorf("%+v: %d calls, want %d", tc.Handed, others.handed[0].calls, tc.calls)
			}
		}
	})
}
