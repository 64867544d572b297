package report

import (
	"math"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/bench/internal/stats"
)

// Number shows three significant figures, with commas in thousands, and no more digits than necessary.
func Number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case math.IsInf(v, 0):
		return "∞"
	}
	digits := 0
	for size := math.Abs(v); size < 99.95 && digits < 3 && v != 0; size *= 10 {
		digits++
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return commas(text)
}

func commas(text string) string {
	whole, fraction, _ := strings.Cut(text, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	for at := len(whole) - 3; at > 0; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	if fraction != "" {
		fraction = "." + fraction
	}
	return sign + whole + fraction
}

// Range shows the middle and, if there are several figures, their spread.
func Range(s stats.Spread) string {
	if s.N < 2 || math.IsNaN(s.Median) {
		return Number(s.Median)
	}
	return Number(s.Median) + " (" + Number(s.Min) + "–" + Number(s.Max) + ")"
}

// trimmed is for JSON: all digits that v has, and no more.
func trimmed(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
