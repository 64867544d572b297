package model

import (
	"slices"
	"strings"
	"testing"
)

// walk is a System over numbers: it begins with 1, and each number leads to those that next says.
type walk struct {
	next            func(n int) []Step[int, string]
	waiting, served func(n int) bool
}

func (w walk) Start() int { return 1 }

func (w walk) Steps(from int, yield func(Step[int, string])) {
	for _, s := range w.next(from) {
		yield(s)
	}
}

func (w walk) Canonical(n int) int { return n % 1000 }

func (w walk) Waiting(n int) uint8 { return bit(w.waiting, n) }

func (w walk) Served(n int) uint8 { return bit(w.served, n) }

func bit(is func(int) bool, n int) uint8 {
	if is != nil && is(n) {
		return 1
	}
	return 0
}

func story(way []Step[int, string]) string {
	var labels []string
	for _, s := range way {
		labels = append(labels, s.Label)
	}
	return strings.Join(labels, " ")
}

type step = Step[int, string]

func TestExploreTellsAShortestWayToABrokenInvariant(t *testing.T) {
	w := walk{next: func(n int) []step {
		broken := ""
		if n+3 == 10 {
			broken = "ten"
		}
		return []step{{Label: "add", To: n + 1}, {Label: "double", To: 2 * n},
			{Label: "leap", To: n + 3, Breaks: broken}}
	}}
	r := Explore(w, 100)
	if r.Breaks != "ten" || len(r.Trace) != 3 || r.Trace[2].To != 10 || r.Complete {
		t.Errorf("%q by %q, want three steps to 10", r.Breaks, story(r.Trace))
	}
}

func TestExploreVisitsEveryStateOnce(t *testing.T) {
	visits := make(map[int]int)
	w := walk{next: func(n int) []step {
		visits[n]++
		return []step{{Label: "add", To: n + 1}, {Label: "add ten", To: n + 10}} // 1000 is 0 again
	}}
	r := Explore(w, 2000)
	if !r.Complete || r.States != 1000 || r.Steps != 2000 || len(visits) != 1000 || r.Depth != 108 {
		t.Errorf("%d states, %d steps, depth %d, complete: %v; want 1000, 2000, 108, true", r.States, r.Steps, r.Depth,
			r.Complete)
	}
	for n, times := range visits {
		if times != 1 {
			t.Errorf("%d was visited %d times", n, times)
		}
	}
}

func TestExploreGivesUpAboveTheLimit(t *testing.T) {
	w := walk{next: func(n int) []step { return []step{{Label: "add", To: n + 1}} }}
	if r := Explore(w, 500); r.Complete || r.Breaks != "" {
		t.Errorf("it claims to have seen all of more than 500 states: %d", r.States)
	}
}

// From 4 only a step that need not happen leads to 6, where the one who waits is served.
func TestExploreFindsWhoWaitsInVain(t *testing.T) {
	ways := map[int][]step{
		1: {{Label: "ask", To: 2}},
		2: {{Label: "look", To: 6, Certain: true}, {Label: "stray", To: 3}},
		3: {{Label: "look", To: 2, Certain: true}, {Label: "stray", To: 4}},
		4: {{Label: "luck", To: 6}, {Label: "look", To: 4, Certain: true}, {Label: "stray", To: 5}},
	}
	w := walk{
		next:    func(n int) []step { return ways[n] },
		waiting: func(n int) bool { return n >= 2 && n <= 4 },
		served:  func(n int) bool { return n == 6 },
	}
	if r := Explore(w, 100); r.Breaks != Stuck || story(r.Trace) != "ask stray stray" {
		t.Errorf("%q by %q, want %q by %q", r.Breaks, story(r.Trace), Stuck, "ask stray stray")
	}
	ways[4][0].Certain = true
	if r := Explore(w, 100); r.Breaks != "" || !r.Complete {
		t.Errorf("%q by %q, though everybody is served", r.Breaks, story(r.Trace))
	}
}

// People read the numbers as the steps make them, and not as states are compared.
func TestATraceHasStatesAsTheStepsMakeThem(t *testing.T) {
	w := walk{next: func(n int) []step {
		s := step{Label: "leap", To: n + 999}
		if n%1000 == 997 {
			s.Breaks = "far"
		}
		return []step{s}
	}}
	r := Explore(w, 2000)
	var to []int
	for _, s := range r.Trace {
		to = append(to, s.To)
	}
	if want := []int{1000, 1999, 2998, 3997, 4996}; !slices.Equal(to, want) {
		t.Errorf("the trace goes to %v, want %v", to, want)
	}
}
