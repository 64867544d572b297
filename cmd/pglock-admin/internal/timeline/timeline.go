// Package timeline draws who held a lock when, as rows of characters.
package timeline

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A Kind is a process's state over a span of time, and how it is drawn.
type Kind struct {
	fill        rune
	style, text Style
}

var (
	Waiting     = Kind{'·', faint, faint}     // for the lock
	Held        = Kind{'█', green, onGreen}   // the lock
	HeldStopped = Kind{'▒', yellow, onYellow} // the lock, while the process was stopped
	Stopped     = Kind{'░', red, red}         // the process was stopped and its lease was over
)

// Open is the end of a span that has not ended.
const Open = time.Duration(-1)

// A Span is a state from one time to another. A span that begins after the time of the drawing is not drawn yet.
type Span struct {
	Kind     Kind
	From, To time.Duration
	Text     string // drawn into it, if it fits; else Short, if that fits
	Short    string
}

// A Note is a text at a certain time: a sign for a write, or a value.
type Note struct {
	At    time.Duration
	Text  string
	Style Style // Plain, Good or Bad
}

// A Row is one process, or one value, over time.
type Row struct {
	Label string
	Spans []Span
	Notes []Note
}

// A Timeline is a set of rows over the same time.
type Timeline struct {
	Rows []*Row
}

// Add adds a span, and ends the row's open span where it begins.
func (r *Row) Add(s Span) {
	r.End(s.From)
	r.Spans = append(r.Spans, s)
}

// End ends the row's open span.
func (r *Row) End(at time.Duration) {
	if n := len(r.Spans); n > 0 && r.Spans[n-1].To == Open {
		r.Spans[n-1].To = max(at, r.Spans[n-1].From)
	}
}

func (r *Row) Note(at time.Duration, style Style, text string) {
	r.Notes = append(r.Notes, Note{at, text, style})
}

type Style string

// The styles of notes.
const (
	Plain = bold
	Good  = Style("1;32")
	Bad   = Style("1;31")
)

const (
	none     Style = ""
	faint    Style = "2"
	bold     Style = "1"
	green    Style = "32"
	onGreen  Style = "30;42"
	yellow   Style = "33"
	onYellow Style = "30;43"
	red      Style = "31"
)

type cell struct {
	r     rune
	style Style
}

// Draw returns the axis and the rows as they are at the given time, in lines of at most width columns. Colour adds
// ANSI sequences; without it the characters alone say everything.
func (t *Timeline) Draw(now time.Duration, width int, colour bool) []string {
	label := 0
	for _, r := range t.Rows {
		label = max(label, utf8.RuneCountInString(r.Label))
	}
	label += 2
	columns := max(20, width-label-1)
	scale := scale{columns: columns - 4, total: max(now, time.Millisecond)} // room for the text at the end
	lines := scale.axis(label, columns, colour)
	for _, r := range t.Rows {
		cells := append(blank(label), r.cells(scale, columns, now)...)
		write(cells, 1, r.Label, bold)
		lines = append(lines, paint(cells, colour))
	}
	return lines
}

// scale maps time to columns.
type scale struct {
	columns int
	total   time.Duration
}

func (s scale) column(at time.Duration) int {
	return min(s.columns-1, max(0, int(int64(at)*int64(s.columns)/int64(s.total))))
}

// axis is a line of times and one of ticks.
func (s scale) axis(label, columns int, colour bool) []string {
	step := 50 * time.Millisecond
	for _, next := range []time.Duration{100, 200, 500, 1000, 2000, 5000, 10000, 60000} {
		if s.column(step) >= 8 {
			break
		}
		step = next * time.Millisecond
	}
	times, ticks := blank(label+columns), blank(label+columns)
	for i := label; i < label+s.columns; i++ {
		ticks[i] = cell{'─', faint}
	}
	for at := time.Duration(0); at < s.total; at += step {
		i := label + s.column(at)
		ticks[i] = cell{'┬', faint}
		write(times, i, fmt.Sprintf("%gs", at.Seconds()), faint)
	}
	return []string{paint(times, colour), paint(ticks, colour)}
}

func (r *Row) cells(s scale, columns int, now time.Duration) []cell {
	cells := blank(columns)
	for _, span := range r.Spans {
		if span.From > now {
			continue
		}
		to := span.To
		if to == Open || to > now {
			to = now
		}
		from, end := s.column(span.From), s.column(to)
		end = max(end, from+1)
		for i := from; i < end; i++ {
			cells[i] = cell{span.Kind.fill, span.Kind.style}
		}
		for _, text := range []string{span.Text, span.Short} {
			if n := utf8.RuneCountInString(text); n > 0 && n < end-from { // the first cell may get a sign
				write(cells, from+1, text, span.Kind.text)
				break
			}
		}
	}
	// From the last to the first, so that notes never cover each other and the last one always stays. A note that
	// would have to stand too far from its time is left out.
	free := columns
	for _, n := range slices.Backward(r.Notes) {
		size := utf8.RuneCountInString(n.Text)
		at := s.column(n.At)
		i := min(at, free-size)
		if i < 0 || at-i > size && free < columns {
			continue
		}
		write(cells, i, n.Text, n.Style)
		free = i
		if size > 1 {
			free--
		}
	}
	return cells
}

// Legend explains the characters, in one line if the width is 78 or more.
func Legend(width int, colour bool) (lines []string) {
	cells, at := blank(width), 1
	for _, k := range []struct {
		sign  string
		style Style
		text  string
	}{
		{string(Waiting.fill), Waiting.style, "waits"}, {string(Held.fill), Held.style, "holds"},
		{string(HeldStopped.fill), HeldStopped.style, "stopped"}, {string(Stopped.fill), Stopped.style, "lease over"},
		{Written, Good, "written"}, {Refused, Bad, "refused"}, {Destroyed, Bad, "late"},
	} {
		if at > 1 && at+2+len(k.text) > width {
			lines = append(lines, paint(cells, colour))
			cells, at = blank(width), 1
		}
		write(cells, at, k.sign, k.style)
		write(cells, at+2, k.text, faint)
		at += len(k.text) + 4
	}
	return append(lines, paint(cells, colour))
}

const (
	Written   = "✔"
	Refused   = "✘"
	Destroyed = "!" // a late write that was accepted
)

func blank(n int) []cell { return slices.Repeat([]cell{{' ', none}}, n) }

func write(cells []cell, at int, text string, s Style) {
	for _, r := range text {
		if at >= 0 && at < len(cells) {
			cells[at] = cell{r, s}
		}
		at++
	}
}

// paint turns cells into a line, without the blanks at its end.
func paint(cells []cell, colour bool) string {
	for len(cells) > 0 && cells[len(cells)-1].r == ' ' {
		cells = cells[:len(cells)-1]
	}
	var b strings.Builder
	now := none
	for _, c := range cells {
		if colour && c.style != now {
			b.WriteString("\x1b[0m")
			if c.style != none {
				b.WriteString("\x1b[" + string(c.style) + "m")
			}
			now = c.style
		}
		b.WriteRune(c.r)
	}
	if now != none {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}
