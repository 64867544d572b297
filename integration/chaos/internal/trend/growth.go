//go:build unix

// Package trend judges what was measured through a long run: whether anything has grown, how long calls took, and how
// soon after a fault there was a grant and a write again.
package trend

import (
	"fmt"
	"slices"
	"time"
)

// Series is one figure through a run. The zero Bound means that it is only shown.
type Series struct {
	Name   string
	Unit   Unit
	Bound  Bound
	Points []Point
}

// Point is the figure at a moment of the run.
type Point struct {
	At    time.Duration // since the beginning
	Value float64
}

// Bound is how much greater the lower quartile of the last third of a run may be than that of its second third: by a
// part of that, and by some more. The first third is left out: pools, plans and tables reach their size in it. The
// quartile is what there is between the peaks, which faults make for up to half of the time. A leak that goes on raises
// it by a third of all that it takes in the run.
type Bound struct{ Part, More float64 }

// fewest is how many points each third needs to be judged.
const fewest = 12

// Growth compares the last third of a series with its second third.
type Growth struct {
	Judged             bool // there were points enough, and a bound
	Second, Last, Most float64
}

// Beyond says whether the series has grown beyond its bound.
func (g Growth) Beyond() bool { return g.Judged && g.Last > g.Most }

// Growth judges the series.
func (s *Series) Growth() (g Growth) {
	if len(s.Points) == 0 {
		return g
	}
	var thirds [3][]float64
	first := s.Points[0].At
	whole := s.Points[len(s.Points)-1].At - first
	for _, p := range s.Points {
		n := 2
		if whole > 0 {
			n = min(2, int(3*(p.At-first)/whole))
		}
		thirds[n] = append(thirds[n], p.Value)
	}
	g.Second, g.Last = quartile(thirds[1]), quartile(thirds[2])
	g.Most = g.Second*(1+s.Bound.Part) + s.Bound.More
	g.Judged = s.Bound != Bound{} && min(len(thirds[1]), len(thirds[2])) >= fewest
	return g
}

// quartile is the lower one.
func quartile(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/4]
}

// Unit says how a figure is written.
type Unit string

// The units.
const (
	Count   Unit = ""
	Bytes   Unit = "B"
	Seconds Unit = "s"
)

// Say writes a figure in its unit.
func (u Unit) Say(v float64) string {
	switch {
	case u == Seconds:
		return SayTime(time.Duration(v * float64(time.Second)))
	case u == Bytes && v >= 1<<20:
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	case u == Bytes && v >= 10<<10:
		return fmt.Sprintf("%.0f kiB", v/(1<<10))
	case u == Bytes && v >= 1<<10:
		return fmt.Sprintf("%.1f kiB", v/(1<<10))
	case u == Bytes:
		return fmt.Sprintf("%.0f B", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// SayTime writes a time with two or three digits.
func SayTime(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
