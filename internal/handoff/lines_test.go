package handoff

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

var key = Key{Name: "report", Holder: "h", TTL: time.Minute}

func at(d time.Duration) trust.Instant {
	return trust.Instant{Mono: d, Wall: time.UnixMicro(0).Add(d)}
}

type lines = Lines[string, string]

// newLines are lines whose agents the test plays.
func newLines(agents *int) *lines {
	return New(8, func(*Line[string, string]) bool { *agents++; return true }, func(string, int) {})
}

// give makes every turn's lease: it is named like its call.
func give(call string, _ int64, _ *Turn[string, string]) (string, bool) { return call, true }

func TestFirstCallAsksForItselfAndLaterOnesHaveAnAgent(t *testing.T) {
	var agents int
	ls := newLines(&agents)
	line, first := ls.Join(key, "a")
	if !first || agents != 0 {
		t.Fatalf("the first call: %v, %d agents", first, agents)
	}
	for _, call := range []string{"b", "c"} {
		if same, first := ls.Join(key, call); same != line || first {
			t.Errorf("%s does not join the line", call)
		}
	}
	if agents != 1 {
		t.Errorf("%d agents for the line", agents)
	}
	if turns, wait := ls.Plan(line, at(0), false, func() {}); turns != 0 || wait != pause.Never {
		t.Errorf("while the first asks: %d turns, wait %v", turns, wait)
	}
	ls.Queued(line, protocol.Answer{Ticket: 1, Place: 3, Holder: "other"}, false)
	if turns, _ := ls.Plan(line, at(0), false, func() {}); turns != 8 {
		t.Errorf("when the first has its ticket the agent asks for %d turns", turns)
	}
	if place, holder, a := ls.StepOut(line, "c"); place != 2 || holder != "" || a.Holder != "other" || a.Place != 4 {
		t.Errorf("the last call steps out of place %d, holder %q, answer %+v; want the line behind its first", place, holder, a)
	}
	ls.Queued(line, protocol.Answer{Ticket: 2, Place: 7, Holder: "other"}, true)
	if place, _, a := ls.StepOut(line, "b"); place != 1 || a.Place != 7 {
		t.Errorf("a call steps out of place %d, answer %+v; want the place of the agent's ticket", place, a)
	}
	if place, _, _ := ls.StepOut(line, "c"); place != 0 {
		t.Errorf("it steps out twice, of place %d", place)
	}
}

// A lease is passed on in the order of the calls, with one token after the other, until the block or its time is used up.
func TestTurnsArePassedOnInOrderUntilTheBlockEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		last int64
		now  time.Duration
		want []string
	}{
		"no block": {1, 0, nil}, "two more": {3, 0, []string{"b", "c"}}, "out of time": {9, time.Second, nil}, "all calls": {9, 0, []string{"b", "c", "d"}},
	} {
		t.Run(name, func(t *testing.T) {
			var agents int
			ls := newLines(&agents)
			line, _ := ls.Join(key, "a")
			turn := ls.Hold(line, "a", 1, tc.last, at(time.Second))
			ls.FirstDone(line)
			for _, call := range []string{"b", "c", "d"} {
				ls.Join(key, call)
			}
			var got []string
			token := int64(1)
			for ls.Pass(turn, at(tc.now), func(call string, n int64, next *Turn[string, string]) (string, bool) {
				if token++; n != token {
					t.Errorf("%s has token %d, want %d", call, n, token)
				}
				got, turn = append(got, call), next
				return call, true
			}) {
				if current, found := ls.Current(turn); !found || current != got[len(got)-1] {
					t.Errorf("the lease that has the grant is %q", current)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("passed to %q, want %q", got, tc.want)
			}
		})
	}
}

// A lease that is known outside ends through the server, and the next grants of the line are for one turn.
func TestI4_KnownTurnIsNotPassedOn(t *testing.T) {
	var agents int
	ls := newLines(&agents)
	line, _ := ls.Join(key, "a")
	turn := ls.Hold(line, "a", 1, 5, at(time.Second))
	ls.FirstDone(line)
	ls.Join(key, "b")
	if _, wait := ls.Plan(line, at(0), false, func() {}); wait != time.Second {
		t.Errorf("while turns can be had the agent waits %v", wait)
	}
	if !ls.MakeKnown(turn) || ls.Pass(turn, at(0), give) {
		t.Error("a lease that is known was passed on")
	}
	if turns, _ := ls.Plan(line, at(0), false, func() {}); turns != 1 {
		t.Errorf("the agent asks for %d turns", turns)
	}
	ls.Ended(turn)
	if other := ls.Hold(line, "b", 6, 9, at(time.Second)); !ls.MakeKnown(turn) || ls.MakeKnown(&Turn[string, string]{line: line, block: turn.block}) || !ls.MakeKnown(other) {
		t.Error("what was known is forgotten, or a lease that has ended becomes known")
	}
}

func TestGrantIsForTheFirstCallAndAFailureForAll(t *testing.T) {
	var agents int
	ls := newLines(&agents)
	line, _ := ls.Join(key, "a")
	ls.FirstDone(line)
	line, _ = ls.Join(key, "a")
	for _, call := range []string{"b", "c", "d"} {
		ls.Join(key, call)
	}
	ls.FirstDone(line)
	if calls := ls.Arrived(line, true, false); !slices.Equal(calls, []string{"b"}) {
		t.Errorf("a grant is for %q", calls)
	}
	if calls := ls.Arrived(line, false, true); calls != nil {
		t.Errorf("a request that the agent took back ended the calls %q", calls)
	}
	if calls := ls.Arrived(line, false, false); !slices.Equal(calls, []string{"c", "d"}) {
		t.Errorf("a failure is for %q", calls)
	}
	if turns, wait := ls.Plan(line, at(0), false, func() {}); turns != 0 || wait != 0 || ls.Len() != 0 {
		t.Errorf("an agent without calls: %d turns, wait %v; %d lines are left", turns, wait, ls.Len())
	}
}

// The request of a line that nobody is in any more is taken back, unless a call comes soon.
func TestRequestOfAnEmptyLineIsTakenBackAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var agents int
		ls := newLines(&agents)
		line, _ := ls.Join(key, "a")
		ls.FirstDone(line)
		line, _ = ls.Join(key, "a")
		ls.Queued(line, protocol.Answer{Ticket: 1}, true)
		var left atomic.Int64
		ls.Join(key, "b")
		ls.Plan(line, at(0), false, func() { left.Add(1) })
		for _, call := range []string{"b", "c"} {
			if call != "b" {
				ls.Join(key, call)
			}
			ls.StepOut(line, call)
			time.Sleep(10*time.Millisecond - 1) // an empty line keeps its ticket for ten
		}
		if left.Load() != 0 {
			t.Error("taken back although a call came")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := left.Load(); n != 1 {
			t.Errorf("taken back %d times", n)
		}
	})
}

func TestPartedCallsAreInNoLine(t *testing.T) {
	var agents int
	ls := newLines(&agents)
	line, _ := ls.Join(key, "a")
	for _, call := range []string{"b", "c", "d"} {
		ls.Join(key, call)
	}
	if parted := ls.Part(func(call string) bool { return call != "c" }); !slices.Equal(parted, []string{"b", "d"}) || !slices.Equal(line.calls, []string{"c"}) {
		t.Errorf("parted %q, left %q", parted, line.calls)
	}
}
