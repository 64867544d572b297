package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
)

// The values of --output.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// show writes the answer of a command: v as JSON, or what the function draws.
func (o *options) show(cmd *cobra.Command, v any, draw func(io.Writer)) error {
	w := cmd.OutOrStdout()
	if o.output == outputJSON {
		return writeJSON(w, v)
	}
	var b strings.Builder
	draw(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// maxCell is where a long cell is wrapped.
const maxCell = 56

// drawTable draws rows under their titles. Every cell must have gone through printable if it holds a text from outside.
func drawTable(w io.Writer, titles []string, rows [][]string, right ...int) {
	t := table.NewWriter()
	t.SetStyle(plainStyle())
	var header table.Row
	for _, title := range titles {
		header = append(header, title)
	}
	t.AppendHeader(header)
	for _, cells := range rows {
		var row table.Row
		for _, c := range cells {
			row = append(row, c)
		}
		t.AppendRow(row)
	}
	var configs []table.ColumnConfig
	for i := range titles {
		c := table.ColumnConfig{Number: i + 1, WidthMax: maxCell, WidthMaxEnforcer: text.WrapHard}
		for _, r := range right {
			if r == i {
				c.Align, c.AlignHeader = text.AlignRight, text.AlignRight
			}
		}
		configs = append(configs, c)
	}
	t.SetColumnConfigs(configs)
	t.SuppressTrailingSpaces()
	fmt.Fprintln(w, t.Render())
}

func plainStyle() table.Style {
	s := table.StyleDefault
	s.Box = table.StyleBoxDefault
	s.Box.PaddingLeft, s.Box.PaddingRight = "", "  "
	s.Options = table.OptionsNoBordersAndSeparators
	s.Format.Header = text.FormatDefault
	return s
}

// drawFields draws one thing, a line for each of its fields; empty ones are left out.
func drawFields(w io.Writer, fields [][2]string) {
	width := 0
	for _, f := range fields {
		width = max(width, len(f[0]))
	}
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(w, "%-*s  %s\n", width, f[0], f[1])
		}
	}
}

// printable is a text from outside as a person may safely see it: quoted, with escapes, if it holds anything that does
// not print or that could be taken for a quoted text.
func printable(s string) string {
	if s == "" || strings.TrimSpace(s) != s || s[0] == '"' || !allPrint(s) {
		return strconv.Quote(s)
	}
	return s
}

func allPrint(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return false
		}
	}
	return true
}

// escapeText escapes what does not print in a text of several lines.
func escapeText(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if !allPrint(strings.ReplaceAll(line, "\t", " ")) {
			q := strconv.Quote(line)
			lines[i] = strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
		}
	}
	return strings.Join(lines, "\n")
}

// escapeJSON escapes what does not print in a JSON text, where it can only stand inside strings.
func escapeJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// leaseBar pictures how much of a lease remains.
func leaseBar(remaining, ttl time.Duration) string {
	const cells = 10
	full := 0
	if ttl > 0 && remaining > 0 {
		full = min(cells, max(1, int((remaining*cells+ttl/2)/ttl)))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}

// age rounds a duration to what a person wants to know of it.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 24*time.Hour:
		return d.Round(time.Second).String()
	}
	d = d.Round(time.Hour)
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// moment is an instant of the server, empty when it is zero.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000 UTC")
}

// shellQuote quotes an argument for a command that is suggested to the user.
func shellQuote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+=,", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
