// Package screens is for tests of what people see: texts beside files, terminals, and texts that these would obey.
package screens

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	uv "github.com/charmbracelet/ultraviolet"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Compare compares a text with a file, whose path begins at the test's folder, or writes the file with -update.
func Compare(tb testing.TB, path, got string) {
	tb.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	if got != string(want) {
		tb.Errorf("%s differs (-update writes it anew). It is\n%s\nwant\n%s", path, got, want)
	}
}

// Terminal is what both emulators of a terminal can tell.
type Terminal interface {
	CellAt(x, y int) *uv.Cell
	Width() int
	Height() int
}

// Text is what a terminal shows, without blanks at the ends of lines.
func Text(e Terminal) string {
	var b strings.Builder
	for y := range e.Height() {
		var line strings.Builder
		for x := range e.Width() {
			if cell := e.CellAt(x, y); cell != nil && cell.Width > 0 {
				line.WriteString(cell.Content)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// Hostile are texts that would write outside of their place, or elsewhere, if a terminal obeyed them.
var Hostile = []string{
	"\x1b[2J\x1b[1;1Hpwned", "\x1b]0;pwned\x07", "\x1b]52;c;cHduZWQ=\x07", "a\r\nb\tc", "\u009b2J", "\x7f\x08\x08",
	"\u202egnp.exe\u202c", "\u2066x\u2069", "\u200bzero\u200dwidth\ufeff",
	strings.Repeat("e\u0301\u0300\u0302", 73), "👨\u200d👩\u200d👧\u200d👦", "🇩🇪🇫🇷", "👍🏽", "❤\ufe0f", "각\u1100\u1161",
	strings.Repeat("界", 170), strings.Repeat("x", 512), strings.Repeat("名前 ", 73),
	"'; rm -rf /", `"quoted"`, "-flag", "back\\slash", "﷽﷽﷽", "ก\u0e33\u0e49", "\u0600number", "█░▶●├─│",
}

// InOrder fails unless a text has these parts in this order.
func InOrder(tb testing.TB, text string, parts ...string) {
	tb.Helper()
	rest := text
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		if !found {
			tb.Errorf("no %q at its place in\n%s", part, text)
			return
		}
		rest = after
	}
}
