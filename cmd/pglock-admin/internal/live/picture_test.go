package live

import (
	"fmt"
	"html"
	"image/color"
	"strings"
	"testing"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/screens"
)

// drawn gives the lines of a screen, and fails if the terminal would wrap one, obey it, or draw it in another width.
func drawn(t *testing.T, m *liveModel) []string {
	t.Helper()
	lines := m.screen()
	if len(lines) != m.height {
		t.Errorf("%d lines, want %d:\n%s", len(lines), m.height, strings.Join(lines, "\n"))
	}
	fitting(t, lines, m.width)
	return lines
}

func fitting(t *testing.T, lines []string, width int) {
	t.Helper()
	for _, line := range lines {
		if n := cells(line); n > width {
			t.Errorf("%d cells, want at most %d: %q", n, width, line)
		}
		if !evenPlain(ansi.Strip(line)) {
			t.Errorf("a line with what a terminal may draw in another width, or obey: %q", line)
		}
	}
}

// emulated shows a screen in a terminal.
func emulated(t *testing.T, m *liveModel) *vt.Emulator {
	t.Helper()
	lines := drawn(t, m)
	e := vt.NewEmulator(m.width, m.height)
	must.Get(e.WriteString("\x1b[?7l" + strings.Join(lines, "\r\n")))(t)
	return e
}

// The measures of a cell in a picture.
const (
	cellWide, cellHigh = 8.4, 18
	pictureMargin      = 12
)

// picture draws what a terminal shows as SVG.
func picture(e screens.Terminal, about string) string {
	var b strings.Builder
	wide, high := float64(e.Width())*cellWide+2*pictureMargin, e.Height()*cellHigh+2*pictureMargin
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" role="img" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14">`+"\n", wide, high)
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(about))
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="#%s"/>`+"\n", pictureBack)
	for y := range e.Height() {
		for x := 0; x < e.Width(); {
			first, text, from := e.CellAt(x, y), "", x
			for ; x < e.Width() && e.CellAt(x, y).Style.Equal(&first.Style); x++ {
				text += e.CellAt(x, y).Content
			}
			drawRun(&b, from, x-from, y, text, first.Style)
		}
	}
	return b.String() + "</svg>\n"
}

const pictureFront, pictureBack = "d8dee9", "1d2330"

func drawRun(b *strings.Builder, x, n, y int, text string, style uv.Style) {
	front, back := pictureFront, pictureBack
	if style.Fg != nil {
		front = hexOf(style.Fg)
	}
	if style.Attrs&uv.AttrReverse != 0 {
		front, back = back, front
	}
	left, top := pictureMargin+float64(x)*cellWide, pictureMargin+y*cellHigh
	if back != pictureBack {
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#%s"/>`+"\n", left, top,
			float64(n)*cellWide, cellHigh, back)
	}
	more := ""
	if style.Attrs&uv.AttrBold != 0 {
		more += ` font-weight="bold"`
	}
	if style.Attrs&uv.AttrFaint != 0 {
		more += ` opacity="0.6"`
	}
	for at := 0; at < len(text); { // each word in its place, whatever the font
		word := strings.TrimLeft(text[at:], " ")
		skip := len(text[at:]) - len(word)
		word, _, _ = strings.Cut(word, "  ")
		word = strings.TrimRight(word, " ")
		if word == "" {
			return
		}
		place := left + float64(cells(text[:at+skip]))*cellWide
		fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="#%s" textLength="%.1f" xml:space="preserve"%s>%s</text>`+"\n",
			place, top+13, front, float64(cells(word))*cellWide, more, html.EscapeString(word))
		at += skip + len(word)
	}
}

func hexOf(c color.Color) string {
	r, g, b, _ := c.RGBA()
	if r>>8 == 0x80 && g == 0 && b == 0 {
		return "e06c75" // red that can be read on dark
	}
	return fmt.Sprintf("%02x%02x%02x", r>>8, g>>8, b>>8)
}
