package main

import (
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// The width of a text where the terminal's is not known, and the least one.
const (
	terminalWidth = 80
	leastWidth    = 30
)

// wrapped breaks a text into lines of so many columns, between words if possible.
func wrapped(s string, columns int) string {
	lines := strings.Split(text.WrapSoft(s, columns), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

// textWidth is how wide sentences are drawn.
func textWidth(w *page) int {
	if w.width == 0 {
		return terminalWidth
	}
	return max(min(terminalWidth, w.width), leastWidth)
}
