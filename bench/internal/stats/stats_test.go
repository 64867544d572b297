package stats

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestMedianIsTheMiddleWhateverTheOrder(t *testing.T) {
	for _, c := range []struct {
		figures []float64
		want    Spread
	}{
		{[]float64{7}, Spread{7, 7, 7, 1}},
		{[]float64{9, 1, 5}, Spread{5, 1, 9, 3}},
		{[]float64{4, 1, 2, 100}, Spread{3, 1, 100, 4}},
	} {
		given := slices.Clone(c.figures)
		if got := Of(c.figures); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.figures, got, c.want)
		}
		if !slices.Equal(given, c.figures) {
			t.Errorf("%v was put into another order: %v", given, c.figures)
		}
	}
	if got := Of(nil); !math.IsNaN(got.Median) || got.N != 0 {
		t.Errorf("of nothing: %+v, want NaN", got)
	}
}

func TestPercentileIsOneOfTheFigures(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for p, want := range map[float64]time.Duration{0: 1, 50: 50, 99: 99, 100: 100} {
		if got := Percentile(hundred, p); got != want {
			t.Errorf("p%v of 1 to 100: %d, want %d", p, got, want)
		}
	}
	if got := Percentile(hundred[:1], 99); got != 1 {
		t.Errorf("p99 of one: %d, want 1", got)
	}
	if got := Percentile(nil, 50); got != 0 {
		t.Errorf("p50 of nothing: %d, want 0", got)
	}
}

func TestFairnessCountsThoseWhoWereThereAllTheTime(t *testing.T) {
	begin := time.Unix(1000, 0)
	end := begin.Add(time.Second)
	before, after, within := begin.Add(-time.Second), end.Add(time.Second), begin.Add(time.Millisecond)
	for name, c := range map[string]struct {
		shares []Share
		want   float64
	}{
		"all the same":          {[]Share{{before, after, 5}, {before, after, 5}}, 1},
		"one twice as often":    {[]Share{{before, after, 5}, {before, after, 10}}, 2},
		"one came late":         {[]Share{{before, after, 5}, {within, after, 1}}, 1},
		"one left early":        {[]Share{{before, after, 5}, {before, within, 1}}, 1},
		"one was never served":  {[]Share{{before, after, 5}, {before, after, 0}}, math.Inf(1)},
		"nobody was served":     {[]Share{{before, after, 0}, {before, after, 0}}, math.NaN()},
		"nobody was there":      {[]Share{{within, after, 5}}, math.NaN()},
		"just there, both ends": {[]Share{{begin, end, 3}, {before, after, 6}}, 2},
	} {
		if got := Fairness(c.shares, begin, end); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestRatiosAreOfTheSameRepetition(t *testing.T) {
	got := Ratios([]float64{10, math.NaN(), 30, 40, 5}, []float64{5, 1, math.NaN(), 0, 10, 7})
	if want := []float64{2, 0.5}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
