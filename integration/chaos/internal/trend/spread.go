//go:build unix

package trend

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Spread is how long many calls took.
type Spread []time.Duration

// Add adds one.
func (s *Spread) Add(d time.Duration) { *s = append(*s, d) }

// Quantile is the time within which this part of the calls came back: with 0.99 all but one in a hundred.
func (s Spread) Quantile(part float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

// MedianAndMost writes the median and the longest.
func (s Spread) MedianAndMost() string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf("%s, %s", SayTime(s.Quantile(0.5)), SayTime(s.Quantile(1)))
}
