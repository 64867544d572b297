package live

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/pglock-dev/pglock/internal/shown"
)

// A screen whose columns stay in place needs more than a text that prints: each rune must take the same number of
// cells in every terminal. These functions escape whatever else there is: combining marks, runes that join their
// neighbours, and those that some terminals draw wider than others.

// cellText is printable for the screen.
func cellText(s string) string {
	text := shown.Text(s)
	even, same := evenCells(text)
	if !same && text == s {
		even, _ = evenCells(strconv.Quote(s))
	}
	return even
}

// cellName is shown.Name for the screen.
func cellName(name string) string {
	text := shown.Name(name)
	even, same := evenCells(text)
	if !same && !strings.HasPrefix(text, `'"`) {
		even, _ = evenCells("'" + shown.Quoted(name) + "'")
	}
	return even
}

// cellLine makes one line of a text such as an error.
func cellLine(s string) string {
	even, _ := evenCells(shown.Lines(strings.Join(strings.Fields(s), " ")))
	return even
}

// evenCells escapes the runes whose width depends on the terminal, and reports whether there were none.
func evenCells(s string) (string, bool) {
	var b strings.Builder
	same := true
	for rest := s; rest != ""; {
		if n := plainBytes(rest); n > 0 {
			b.WriteString(rest[:n])
			rest = rest[n:]
			continue
		}
		cluster, _ := ansi.FirstGraphemeCluster(rest, ansi.GraphemeWidth)
		rest = rest[len(cluster):]
		for i, r := range cluster {
			if i == 0 && evenRune(r) {
				b.WriteRune(r)
				continue
			}
			b.WriteString(shown.Escaped(r))
			same = false
		}
	}
	return b.String(), same
}

// plainBytes counts the printable ASCII that a text begins with, without a last one that the next rune may join.
func plainBytes(s string) int {
	for n := range len(s) {
		switch {
		case s[n] >= utf8.RuneSelf:
			return max(0, n-1)
		case s[n] < ' ' || s[n] == 0x7f:
			return n
		}
	}
	return len(s)
}

func evenRune(r rune) bool {
	s := string(r)
	n := ansi.StringWidth(s)
	return shown.Prints(r) && n > 0 && n == ansi.StringWidthWc(s)
}

// cells is the width of a text from the functions above.
func cells(s string) int {
	if plainBytes(s) == len(s) {
		return len(s)
	}
	return ansi.StringWidth(s)
}

// fit makes a text exactly so wide. Of one that is too long it leaves out the middle: names that begin alike often end
// differently.
func fit(s string, width int) string {
	s = shorten(s, width)
	return s + strings.Repeat(" ", max(0, width-cells(s)))
}

// fitRight is fit for what stands at the right.
func fitRight(s string, width int) string {
	s = shorten(s, width)
	return strings.Repeat(" ", max(0, width-cells(s))) + s
}

// shorten makes a text at most so wide.
func shorten(s string, width int) string {
	switch {
	case cells(s) <= width:
		return s
	case width < 1:
		return ""
	}
	tail := (width - 1) / 3
	return ansi.Truncate(s, width-1-tail, "") + "…" + lastCells(s, tail)
}

// folded breaks a text into lines of that width, at blanks and after hyphens where it can. It shortens the last line if
// the text needs more than so many.
func folded(s string, width, most int) (lines []string) {
	if s == "" || width < 1 || most < 1 {
		return nil
	}
	for len(lines) < most-1 && cells(s) > width {
		// Wrap lets a hyphen stand beyond the width.
		line, _, _ := strings.Cut(ansi.Hardwrap(ansi.Wrap(s, width, ""), width, false), "\n")
		lines, s = append(lines, line), strings.TrimLeft(strings.TrimPrefix(s, line), " ")
	}
	return append(lines, shorten(s, width))
}

// flow puts pieces into lines, with a dot between those on the same line.
func flow(width int, pieces ...string) (lines []string) {
	const dot = " · "
	for _, piece := range pieces {
		if piece == "" {
			continue
		}
		if n := len(lines); n > 0 && cells(lines[n-1])+cells(dot)+cells(piece) <= width {
			lines[n-1] += dot + piece
		} else {
			lines = append(lines, shorten(piece, width))
		}
	}
	return lines
}

// The looks of texts on the screen.
func liveBold(s string) string    { return ansi.NewStyle().Bold().Styled(s) }
func liveFaint(s string) string   { return ansi.NewStyle().Faint().Styled(s) }
func liveReverse(s string) string { return ansi.NewStyle().Reverse(true).Styled(s) }
func liveAlarm(s string) string   { return ansi.NewStyle().Bold().ForegroundColor(ansi.Red).Styled(s) }
