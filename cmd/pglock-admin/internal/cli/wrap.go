package cli

import (
	"io"
	"os"
	"strings"

	"github.com/charmbracelet/x/term"
	"github.com/jedib0t/go-pretty/v6/text"
)

// The width of a text where the terminal's is not known, and the least one.
const (
	TerminalWidth = 80
	LeastWidth    = 30
)

// Columns is the width of the terminal; 0 means unknown, or that w is no terminal.
func Columns(w io.Writer) int {
	if f, is := w.(*os.File); is {
		if columns, _, err := term.GetSize(f.Fd()); err == nil {
			return columns
		}
	}
	return 0
}

// Wrapped breaks a text into lines of so many columns, between words if possible.
func Wrapped(s string, columns int) string {
	lines := strings.Split(text.WrapSoft(s, columns), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

// Indented indents all lines of a text but the first.
func Indented(s string, columns int) string {
	return strings.ReplaceAll(s, "\n", "\n"+strings.Repeat(" ", columns))
}

// TextWidth is how wide sentences are drawn.
func TextWidth(w *Page) int { return w.AtMost(TerminalWidth) }

// AtMost is how wide something is drawn that needs so many columns.
func (w *Page) AtMost(columns int) int {
	if w.Width == 0 {
		return columns
	}
	return max(min(columns, w.Width), LeastWidth)
}
