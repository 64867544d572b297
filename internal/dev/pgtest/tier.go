package pgtest

import (
	"slices"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/tier"
)

const (
	// EveryTest says that every test runs, with loads as small as they can be.
	EveryTest = tier.EveryTest
	// LargeLoads says that loads are as large as they were meant to be, and last as long.
	LargeLoads = tier.LargeLoads
)

// Long leaves a test, or a part of one, to the long tier: it takes long, or much memory. The tests that are named show
// the same in small: a test of pgtest/tiers checks that there are such.
func Long(tb testing.TB, _ ...string) {
	tb.Helper()
	if !LargeLoads {
		tb.Skip("in the long tier: go test -tags long")
	}
}

// Among says whether a test has this case: in the short tier only those that are named.
func Among(name string, short ...string) bool { return EveryTest || slices.Contains(short, name) }

// Some returns the cases that a test has in this tier: in the short tier those for which short is true, of which there
// must be one at least, and in the others all.
func Some[T any](tb testing.TB, cases []T, short func(T) bool) []T {
	tb.Helper()
	if EveryTest {
		return cases
	}
	var some []T
	for _, c := range cases {
		if short(c) {
			some = append(some, c)
		}
	}
	if len(some) == 0 {
		tb.Fatal("pgtest: the short tier has none of the cases")
	}
	return some
}
