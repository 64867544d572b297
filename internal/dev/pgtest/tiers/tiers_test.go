package tiers_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest/tiers"
	"github.com/pglock-dev/pglock/internal/dev/tier"
)

// The short tier leaves out no promise, and what is left to the long tier is shown in small by another test.
func TestTheShortTierShowsEveryPromise(t *testing.T) {
	t.Parallel()
	all := must.Get(tiers.Sources("../../../.."))(t)
	if len(all) < 1000 {
		t.Fatalf("only %d tests were found", len(all))
	}
	small := make(map[string]bool)
	short := make(map[string]int) // by the parts of the names of promises
	for _, s := range all {
		small[s.Name] = small[s.Name] || !s.Long
		for part := range strings.SplitSeq(strings.TrimPrefix(s.Name, "Test"), "_") {
			if s.Short && promise.MatchString(part) {
				short[part]++
			}
		}
	}
	for _, s := range all {
		for _, name := range s.Shown {
			if !small[name] || name == s.Name {
				t.Errorf("%s: %s leaves to %s what no other test shows in small", s.Position, s.Name, name)
			}
		}
	}
	want := map[string]int{"A5": 1, "A10": 1, "Hole": 1}
	for n := 1; n <= 25; n++ {
		want[fmt.Sprintf("I%d", n)] = 1
		if n <= 11 {
			want[fmt.Sprintf("I%d", n)] = 2
		}
	}
	for n := 1; n <= 12; n++ {
		want[fmt.Sprintf("Trap%d", n)] = 1
	}
	for p, n := range want {
		if short[p] < n {
			t.Errorf("%s has %d tests in the short tier, want %d at least", p, short[p], n)
		}
	}
}

var promise = regexp.MustCompile(`^(I\d+|A\d+|Trap\d+|Hole)$`)

// A name that no test has would leave the short tier without the test that was meant.
func TestTheListOfTheShortTierHasTestsThatAreThere(t *testing.T) {
	t.Parallel()
	short := make(map[string][]string)
	for _, s := range must.Get(tiers.Sources("../../../.."))(t) {
		if s.Short {
			short[s.Dir] = append(short[s.Dir], s.Name)
		}
	}
	for dir, names := range tier.List() {
		if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("%s: the names do not stand in order, each once", dir)
		}
		for _, name := range names {
			if !slices.Contains(short[dir], name) {
				t.Errorf("%s has no test %s outside the long tier", dir, name)
			}
		}
	}
}
