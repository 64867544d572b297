// Package stats makes few figures of many.
package stats

import (
	"math"
	"slices"
	"time"
)

// Spread is the middle of some figures and how far they lie apart.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// Of returns the spread of figures, NaN if there are none. For an even number of figures the median is the mean of
// the middle two.
func Of(figures []float64) Spread {
	if len(figures) == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(figures))
	n := len(sorted)
	median := sorted[n/2]
	if n%2 == 0 {
		median = (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return Spread{Median: median, Min: sorted[0], Max: sorted[n-1], N: n}
}

// Percentile is the smallest of the sorted durations that at least p in 100 of them do not exceed; 0 of none.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Share is what one caller had of a window, and when it took part.
type Share struct {
	From, To time.Time // between its first call and its last
	Served   int       // within the window
}

// Fairness is the turns of the caller with the most, divided by those of the caller with the least, among those that
// took part in the entire window. It is infinite if one was not served and another was, and NaN if nobody took part
// or was served.
func Fairness(shares []Share, begin, end time.Time) float64 {
	var served []float64
	for _, s := range shares {
		if !s.From.After(begin) && !s.To.Before(end) {
			served = append(served, float64(s.Served))
		}
	}
	if len(served) == 0 {
		return math.NaN()
	}
	return slices.Max(served) / slices.Min(served)
}

// Ratios divides figures of the same repetition; if one is missing (NaN) or the divisor is zero, there is no ratio.
func Ratios(a, b []float64) []float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if math.IsNaN(a[i]) || math.IsNaN(b[i]) || b[i] == 0 {
			continue
		}
		ratios = append(ratios, a[i]/b[i])
	}
	return ratios
}
