package cli

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

func TestDurationsHaveDaysAndWeeks(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"90d": 90 * day, "2w": 14 * day, "36h": 36 * time.Hour, "1d12h": 36 * time.Hour, "1w2d3h4m5s": 9*day +
			3*time.Hour + 4*time.Minute + 5*time.Second,
		"1.5d": 36 * time.Hour, "0.5w": 84 * time.Hour, "0s": 0, "0": 0, "0d": 0, "100ms": 100 * time.Millisecond,
		"1.5h": 90 * time.Minute, "5µs": 5 * time.Microsecond,
		"-1d": -day, "-1d12h": -36 * time.Hour, "-5m": -5 * time.Minute, "365d": 365 * day,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%s is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "d", "1", "90", "1day", "1x", "1d-2h", "1d+2h", "--1d", "12h1d", "1 d", "d1",
		"1.d", "1e3d", "∞", "300y", "106752d", "99999999w", strings.Repeat("9", 400) + "d"} {
		if got, err := parseDuration(text); err == nil || !strings.Contains(err.Error(), "it must be") {
			t.Errorf("%q is %v, %v; want a refusal that names the rule", text, got, err)
		}
	}
}

func TestDurationsAreWrittenAsTheyAreRead(t *testing.T) {
	t.Parallel()
	for text, d := range map[string]time.Duration{"1d": 24 * time.Hour, "90d": 2160 * time.Hour,
		"1d12h": 36 * time.Hour, "22h": 22 * time.Hour, "10s": 10 * time.Second,
		"1m": time.Minute, "1m30s": 90 * time.Second, "1h0m5s": time.Hour + 5*time.Second, "0s": 0,
		"250ms": 250 * time.Millisecond, "1d30m": 24*time.Hour + 30*time.Minute} {
		if got := shown.Duration(d); got != text {
			t.Errorf("%v is written %s, want %s", d, got, text)
		}
	}
	for range 1000 {
		d := time.Duration(rand.Int64N(int64(200 * 24 * time.Hour))) //nolint:gosec // not a secret
		if got, err := parseDuration(shown.Duration(d)); err != nil || got != d {
			t.Errorf("%v is written %s, which is read as %v, %v", d, shown.Duration(d), got, err)
		}
	}
}
