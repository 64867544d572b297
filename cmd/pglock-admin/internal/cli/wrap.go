package cli

import (
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// The width of a text where the terminal's is not known, and the least one.
const (
	TerminalWidth = 80
	LeastWidth    = 30
)

// Wrapped breaks a text into lines of so many columns, between words if possible.
func Wrapped(s string, columns int) string {
	lines := strings.Split(text.WrapSoft(s, columns), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

// TextWidth is how wide sentences are drawn.
func TextWidth(w *Page) int {
	if w.Width == 0 {
		return TerminalWidth
	}
	return max(min(TerminalWidth, w.Width), LeastWidth)
}
