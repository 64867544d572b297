package trust

import (
	"testing"
	"testing/synctest"
	"time"
)

// Whichever clock has moved further is believed.
func TestI7_TheClockThatHasMovedFurtherCounts(t *testing.T) {
	wall := time.UnixMicro(0)
	deadline := Instant{Mono: 10 * time.Second, Wall: wall.Add(10 * time.Second)}
	for name, tc := range map[string]struct {
		mono, wall time.Duration
		left       time.Duration
	}{
		"together":         {4 * time.Second, 4 * time.Second, 6 * time.Second},
		"suspended":        {4 * time.Second, 14 * time.Second, -4 * time.Second},
		"clock set back":   {14 * time.Second, 4 * time.Second, -4 * time.Second},
		"at the last one":  {10 * time.Second, 9 * time.Second, 0},
		"at the last wall": {9 * time.Second, 10 * time.Second, 0},
	} {
		now := Instant{Mono: tc.mono, Wall: wall.Add(tc.wall)}
		if got := now.Until(deadline); got != tc.left || now.Reached(deadline) != (got <= 0) {
			t.Errorf("%s: %v left, reached: %v", name, got, now.Reached(deadline))
		}
	}
}

func TestI7_DeadlineIsTheTTLOrWhatIsLeftLessAMargin(t *testing.T) {
	for _, tc := range []struct{ ttl, left, want time.Duration }{
		{10 * time.Second, 10 * time.Second, 9500 * time.Millisecond},
		{10 * time.Second, 4 * time.Second, 3800 * time.Millisecond},
		{10 * time.Second, time.Hour, 9500 * time.Millisecond},
		{time.Hour, time.Hour, time.Hour - time.Second},
	} {
		sent := Instant{Mono: time.Minute, Wall: time.UnixMicro(0)}
		if got := sent.Until(Deadline(sent, tc.ttl, tc.left)); got != tc.want {
			t.Errorf("a TTL of %v with %v left is trusted for %v, want %v", tc.ttl, tc.left, got, tc.want)
		}
	}
}

func TestSystemClockReadsBothClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := SystemClock()
		before := clock()
		time.Sleep(time.Second)
		if got := before.Until(clock()); got != time.Second || clock().Wall != time.Now().Round(0) {
			t.Errorf("%v have passed", got)
		}
	})
}
