// Package timeline draws who held a lock when, as rows of characters.
package timeline

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A Kind is a process's state over a span of time.
type Kind int

// The kinds.
const (
	Waiting     Kind = iota // for the lock
	Held                    // the lock
	HeldStopped             // the lock, while the process was stopped
	Stopped                 // the process was stopped and its lease was over
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

// A Tone is what a mark or a note means to the reader.
type Tone int

// The tones.
const (
	Plain Tone = iota
	Good
	Bad
)

// A Note is a text at a certain time: a sign for a write, or a value.
type Note struct {
	At   time.Duration
	Text string
	Tone Tone
}

// A Row is one process, or one value, over time.
type Row struct {
	Label string
	Spans []Span
	Notes []Note
}

// A Timeline is a set of rows over the same time.
type Timeline struct {
	Rows  []*Row
	Total time.Duration // the expected duration; the drawing is longer if it takes longer
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

// Note adds a text at a time.
func (r *Row) Note(at time.Duration, tone Tone, text string) {
	r.Notes = append(r.Notes, Note{At: at, Tone: tone, Text: text})
}

type style string

const (
	none     style = ""
	faint    style = "2"
	bold     style = "1"
	green    style = "32"
	onGreen  style = "30;42"
	yellow   style = "33"
	onYellow style = "30;43"
	red      style = "31"
	boldRed  style = "1;31"
	boldGood style = "1;32"
)

type cell struct {
	r     rune
	style style
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
	scale := scale{columns: columns - 4, total: max(t.Total, now, time.Millisecond)} // room for the text at the end
	lines := scale.axis(label, columns, colour)
	for _, r := range t.Rows {
		cells := []cell{{' ', none}}
		for _, c := range r.Label {
			cells = append(cells, cell{c, bold})
		}
		for len(cells) < label {
			cells = append(cells, cell{' ', none})
		}
		lines = append(lines, paint(append(cells, r.cells(scale, columns, now)...), colour))
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
		if span.Kind == HeldStopped && to > now { // nothing renews this lease: its end is known
			for i := s.column(now); i < s.column(to); i++ {
				cells[i] = cell{'╌', yellow}
			}
		}
		if to == Open || to > now {
			to = now
		}
		from, end := s.column(span.From), s.column(to)
		end = max(end, from+1)
		fill, fillStyle, textStyle := look(span.Kind)
		for i := from; i < end; i++ {
			cells[i] = cell{fill, fillStyle}
		}
		for _, text := range []string{span.Text, span.Short} {
			if n := utf8.RuneCountInString(text); n > 0 && n < end-from { // the first cell may get a sign
				write(cells, from+1, text, textStyle)
				break
			}
		}
	}
	// From the last to the first, so that notes never cover each other and the last one always stays. A note that
	// would have to stand too far from its time is left out.
	free := columns
	for _, n := range slices.Backward(r.Notes) {
		if n.At > now {
			continue
		}
		size := utf8.RuneCountInString(n.Text)
		at := s.column(n.At)
		i := min(at, free-size)
		if i < 0 || at-i > size && free < columns {
			continue
		}
		write(cells, i, n.Text, map[Tone]style{Plain: bold, Good: boldGood, Bad: boldRed}[n.Tone])
		free = i
		if size > 1 {
			free--
		}
	}
	return cells
}

func look(k Kind) (fill rune, fillStyle, textStyle style) {
	switch k {
	case Held:
		return '█', green, onGreen
	case HeldStopped:
		return '▒', yellow, onYellow
	case Stopped:
		return '░', red, red
	}
	return '·', faint, faint
}

// Legend explains the characters, in one line of less than 78 columns.
func Legend(colour bool) string {
	sign := func(k Kind) cell {
		fill, s, _ := look(k)
		return cell{fill, s}
	}
	cells := []cell{{' ', none}}
	for _, k := range []struct {
		sign cell
		text string
	}{
		{sign(Waiting), "waits"}, {sign(Held), "holds"}, {sign(HeldStopped), "stopped"}, {sign(Stopped), "lease over"},
		{cell{[]rune(Written)[0], boldGood}, "written"}, {cell{[]rune(Refused)[0], boldRed}, "refused"},
		{cell{[]rune(Destroyed)[0], boldRed}, "late"},
	} {
		cells = append(cells, k.sign)
		for _, c := range " " + k.text + "  " {
			cells = append(cells, cell{c, faint})
		}
	}
	return paint(cells, colour)
}

// The signs of writes.
const (
	Written   = "✔"
	Refused   = "✘"
	Destroyed = "!" // a late write that was accepted
)

func blank(n int) []cell {
	cells := make([]cell, n)
	for i := range cells {
		cells[i] = cell{' ', none}
	}
	return cells
}

func write(cells []cell, at int, text string, s style) {
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
