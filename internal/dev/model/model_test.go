package model

import (
	"maps"
	"runtime/metrics"
	"slices"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/tier"
)

// most is how many states an exploration may have.
const most = 8_000_000

var (
	two = Scenario{Name: "two clients, whatever may happen", Roles: []Role{OnX, OnX}, Stops: []int{0, 1},
		Writes: true, Renewals: true, GivingUp: true, HandOvers: true, Breaks: true, Hints: true, LostAnswers: true}
	heard = Scenario{Name: "two clients whose requests are answered", Roles: []Role{OnX, OnX},
		Stops: []int{0, 1}, HandOvers: true, Breaks: true, Hints: true}
	queue = Scenario{Name: "three clients that queue", Roles: []Role{OnX, OnX, OnX},
		Stops: []int{0, 1, 2}, GivingUp: true, HandOvers: true, Breaks: true, Hints: true, LostAnswers: true}
	above = Scenario{Name: "a name and a subtree, whatever may happen", Roles: []Role{OnX, Tree},
		Stops: []int{0, 1}, Writes: true, Renewals: true, GivingUp: true, LostAnswers: true}
	aboveTwo = Scenario{Name: "two clients of a name, and a subtree",
		Roles: []Role{OnX, OnX, Tree}}
	twoAbove = Scenario{Name: "a name and two subtrees", Roles: []Role{OnX, Tree, Tree}}

	short = []Scenario{two, heard, queue, above, aboveTwo, twoAbove}

	// whole are those of the whole tier.
	whole = []Scenario{
		{Name: "three clients, whatever may happen", Roles: []Role{OnX, OnX, OnX},
			Stops: []int{0, 1, 2}, Writes: true, Renewals: true, GivingUp: true, HandOvers: true, Breaks: true,
			Hints: true, LostAnswers: true},
		{Name: "two clients of a name, and a subtree: writes", Roles: []Role{OnX, OnX, Tree},
			Writes: true, Renewals: true},
		{Name: "two clients of a name, and a subtree: stops", Roles: []Role{OnX, OnX, Tree},
			Stops: []int{0, 2}},
		{Name: "two names and a subtree: stops", Roles: []Role{OnX, OnY, Tree},
			Stops: []int{0}},
		{Name: "a name and two subtrees: stops", Roles: []Role{OnX, Tree, Tree},
			Stops: []int{2}},
	}

	// long are those of the long tier.
	long = []Scenario{
		{Name: "a name and two subtrees: more stops", Roles: []Role{OnX, Tree, Tree},
			Stops: []int{0, 2}},
	}
)

// notes are what has come about in an exploration.
type notes struct {
	*Model
	kinds  [kinds]int
	rare   []string // what has not come about yet
	served uint8
}

func (n *notes) Steps(from State, yield func(Step[State, Label])) {
	n.served |= n.Served(from)
	n.Model.Steps(from, func(s Step[State, Label]) {
		n.kinds[s.Label.Kind]++
		n.rare = slices.DeleteFunc(n.rare, func(name string) bool { return rare[name](n.Model, &from, &s) })
		yield(s)
	})
}

// rare is what must come about, or the model tries too little.
var rare = map[string]func(*Model, *State, *Step[State, Label]) bool{
	"a commit after the lease has run out": func(m *Model, from *State, s *Step[State, Label]) bool {
		return s.Label.Kind == Commits && from.lease(m, int(s.Label.Who)).Phase == ranOut
	},
	"a hint of a lease that is over": func(m *Model, from *State, s *Step[State, Label]) bool {
		c := int(s.Label.Who)
		return s.Label.Kind == HearsHint && from.lease(m, c).Token != from.Clients[c].Hint
	},
	"a fence that refuses": func(_ *Model, from *State, s *Step[State, Label]) bool {
		return s.Label.Kind == PassesFence && s.To.Clients[s.Label.Who].At == idle
	},
	"a check inside COMMIT that refuses": func(_ *Model, from *State, s *Step[State, Label]) bool {
		return s.Label.Kind == ChecksLease && s.To.Clients[s.Label.Who].At != checked
	},
	"a renewal that commits after its lease has run out": func(m *Model, from *State, s *Step[State, Label]) bool {
		return s.Label.Kind == RenewalCommits && from.lease(m, int(s.Label.Who)).Phase == ranOut
	},
	"a client with a ticket that is passed over": func(m *Model, from *State, s *Step[State, Label]) bool {
		for c := range m.Roles {
			if c != int(s.Label.Who) && from.Clients[c].queued() && s.To.Clients[c].Ticket == 0 &&
				s.To.lease(m, c).Phase != running {
				return true
			}
		}
		return false
	},
	"a plain request behind a subtree at a free name": func(m *Model, from *State, s *Step[State, Label]) bool {
		return m.tree && s.To.Locks[OnX].Marked && !from.Locks[OnX].Marked
	},
	"a subtree that waits for a grant under way": func(_ *Model, _ *State, s *Step[State, Label]) bool {
		return s.Label.Kind == WaitsForGrants && s.To.Clients[s.Label.Who].Behind != 0
	},
	"a subtree that settles a lease below": func(m *Model, from *State, s *Step[State, Label]) bool {
		return s.Label.Kind == Asks && m.isTree(int(s.Label.Who)) && from.Locks[OnX].Phase == ranOut &&
			s.To.Locks[OnX].Phase == over
	},
	"a snapshot that shows a subtree that is no more": func(m *Model, from *State, s *Step[State, Label]) bool {
		c := s.Label.Who
		if s.Label.Kind != Asks || from.Clients[c].Stage != snapped {
			return false
		}
		for d := range m.Roles {
			if from.Clients[c].Saw[d]&sawRunning != 0 && m.isTree(d) && from.Clients[d].Sub.Phase != running {
				return true
			}
		}
		return false
	},
}

func TestEveryOrderOfStepsKeepsTheInvariants(t *testing.T) {
	scenarios, name := short, "short"
	if tier.EveryTest {
		scenarios, name = append(scenarios, whole...), "whole"
	}
	if tier.LargeLoads {
		scenarios, name = append(scenarios, long...), "long"
	}
	happened, missing := [kinds]int{}, slices.Collect(maps.Keys(rare))
	ran, states, began := 0, 0, time.Now()
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			began := time.Now()
			m := &notes{Model: New(s, NoMistake), rare: missing}
			r := Explore(m, most)
			missing = m.rare
			for k, n := range m.kinds {
				happened[k] += n
			}
			ran, states = ran+1, states+r.States
			t.Logf("%d states, %d steps, the farthest state after %d; %v", r.States, r.Steps, r.Depth,
				time.Since(began).Round(time.Millisecond))
			switch {
			case r.Breaks != "":
				t.Errorf("%s:\n%s", r.Breaks, m.Story(r.Trace))
			case !r.Complete:
				t.Errorf("there are more than %d states", most)
			case m.served != 1<<len(s.Roles)-1:
				t.Errorf("only %b of the clients were ever served", m.served)
			}
		})
	}
	if ran < len(scenarios) {
		return // only some were chosen
	}
	for k, n := range happened {
		if n == 0 && Kind(k) != DrawsToken { // which only a mistake has
			t.Errorf("no step %q was ever possible", Kind(k))
		}
	}
	for _, name := range missing {
		t.Errorf("there never was %s", name)
	}
	checkStates(t, name, states)
	t.Logf("in all %d states, %v, %d MB of memory", states, time.Since(began).Round(time.Millisecond), memory())
}

// memory is what the process has from the system, in megabytes.
func memory() uint64 {
	all := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64() >> 20
}

var mistakes = []struct {
	Mistake
	in     Scenario
	breaks string
}{
	{TokenBeforeRow, two, Ascending},
	{QueueWithoutHead, two, InTurn},
	{ServeLast, two, InTurn},
	{ReleaseOnly, two, InTurn},
	{HintsAlone, heard, Stuck},
	{NoFence, two, FenceHeld},
	{NoCheck, two, InTime},
	{NoLockInside, two, InTime},
	{RenewalPassed, two, Exclusion},
	{LateRenewal, above, Exclusion},
	{EndNotNoted, above, Exclusion},
	{NoWaitForGrants, above, Exclusion},
	{SnapshotFirst, above, Exclusion},
	{NoTableLock, twoAbove, Exclusion},
	{HeadNotMarked, aboveTwo, InTurn},
	{PassLower, above, InTurn},
	{TokenWithTicket, above, Ascending},
	{DeadTicketLeft, above, Exclusion},
	{DeadTicketGone, above, Exclusion},
	{DeadSubtreeLeft, above, Exclusion},
	{DeadCounts, above, Stuck},
	{NewcomersPass, above, InTurn},
}

func TestEveryMistakeIsFound(t *testing.T) {
	for _, mistake := range mistakes {
		t.Run(string(mistake.Mistake), func(t *testing.T) {
			began := time.Now()
			m := New(mistake.in, mistake.Mistake)
			r := Explore(m, most)
			if r.Breaks != mistake.breaks {
				t.Fatalf("it breaks %q, want %q\n%s", r.Breaks, mistake.breaks, m.Story(r.Trace))
			}
			t.Logf("%s, after %d states, %v:\n%s", r.Breaks, r.States, time.Since(began).Round(time.Millisecond),
				m.Story(r.Trace))
		})
	}
}
