package tiers_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest/tiers"
)

// What the short tier leaves out is shown there by another test, and it leaves out no promise.
func TestTheShortTierShowsEveryPromise(t *testing.T) {
	t.Parallel()
	all := must.Get(tiers.Sources("../../../.."))(t)
	if len(all) < 1000 {
		t.Fatalf("only %d tests were found", len(all))
	}
	short := make(map[string]int) // by name, and by the parts of the names of promises
	for _, s := range all {
		if s.Moved {
			continue
		}
		short[s.Name]++
		for part := range strings.SplitSeq(strings.TrimPrefix(s.Name, "Test"), "_") {
			if promise.MatchString(part) {
				short[part]++
			}
		}
	}
	for _, s := range all {
		for _, name := range s.Shown {
			if short[name] == 0 || name == s.Name {
				t.Errorf("%s: %s leaves to %s what no other test of the short tier shows", s.Position, s.Name, name)
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
	for _, n := range []int{1, 2, 3, 4, 8, 9, 10} {
		want[fmt.Sprintf("Trap%d", n)] = 1
	}
	for p, n := range want {
		if short[p] < n {
			t.Errorf("%s has %d tests in the short tier, want %d at least", p, short[p], n)
		}
	}
}

var promise = regexp.MustCompile(`^(I\d+|A\d+|Trap\d+|Hole)$`)
