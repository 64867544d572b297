package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

const (
	OutputTable = "table"
	OutputJSON  = "json"
	outputYAML  = "yaml"
	OutputTree  = "tree" // only of commands that DrawsTree
)

// DrawsTree marks a command that can draw a tree, too, and connects to the database.
var DrawsTree = map[string]string{"database": "used", "tree": "drawn"}

// Outputs are the values of --output that every command takes.
var Outputs = []string{OutputTable, OutputJSON, outputYAML}

// Show writes the answer of a command: first the server and database, then v as JSON or YAML, or what draw draws.
func (o *Options) Show(cmd *cobra.Command, v any, draw func(*Page)) error {
	w := cmd.OutOrStdout()
	if o.Output != OutputTable && o.Output != OutputTree {
		return o.showData(w, v)
	}
	p := &Page{Width: Columns(w)}
	if o.At != nil {
		fmt.Fprintf(p, "at %s\n", shown.Line(o.At.Now().String()))
	}
	if o.Standby != nil {
		fmt.Fprintln(p, Wrapped(o.Standby.String(), TextWidth(p)))
	}
	draw(p)
	_, err := io.WriteString(w, p.String())
	return err
}

// Page is the text that a command writes for people.
type Page struct {
	strings.Builder
	Width int // of the terminal, 0 when it is not known
}

// showData adds the server and database to the fields of v, which is an object, and what is to know of a standby.
func (o *Options) showData(w io.Writer, v any) error {
	if o.At == nil {
		return WriteData(w, o.Output, v)
	}
	first, err := json.Marshal(struct {
		At      Where              `json:"at"`
		Standby *lockadmin.Standby `json:"standby,omitempty"`
	}{o.At.Now(), o.Standby})
	if err != nil {
		return err
	}
	rest, err := json.Marshal(v)
	if err != nil {
		return err
	}
	first[len(first)-1] = ','
	return WriteData(w, o.Output, json.RawMessage(append(first, rest[1:]...)))
}

// Changed is show for a command that has changed something. If the answer cannot be written, the error says that the
// change was made.
func (o *Options) Changed(cmd *cobra.Command, v any, draw func(*Page)) error {
	if err := o.Show(cmd, v, draw); err != nil {
		return &Advised{Text: "it was done, but the answer could not be written", Err: err, Code: ExitFailure,
			Hint: "send the output of the next command where it can be written"}
	}
	return nil
}

// Table has rows under their titles. A cell with a text from outside must have gone through shown.Text or shown.Name.
type Table struct {
	Titles []string
	Rows   [][]string
	Right  []string // titles of the columns that stand at the right
	Spare  []string // titles of the columns that leave first when the terminal is narrow
}

// Draw draws the table. If the terminal is too narrow even without what can be spared, each row is a list of fields.
func (t *Table) Draw(w *Page) {
	drawn := t.render()
	for _, title := range t.Spare {
		if w.fits(drawn) {
			break
		}
		t.Without(title)
		drawn = t.render()
	}
	if w.fits(drawn) {
		fmt.Fprintln(w, drawn)
		return
	}
	for n, cells := range t.Rows {
		if n > 0 {
			fmt.Fprintln(w)
		}
		var fields [][2]string
		for i, title := range t.Titles {
			fields = append(fields, [2]string{title, cells[i]})
		}
		DrawFields(w, fields)
	}
}

func (w *Page) fits(drawn string) bool { return w.Width == 0 || text.LongestLineLen(drawn) <= w.Width }

func (t *Table) Without(title string) {
	n := slices.Index(t.Titles, title)
	t.Titles = slices.Delete(t.Titles, n, n+1)
	for i, row := range t.Rows {
		t.Rows[i] = slices.Delete(row, n, n+1)
	}
}

func (t *Table) render() string {
	w := table.NewWriter()
	w.SetStyle(plainStyle())
	w.AppendHeader(cellsOf(t.Titles))
	for _, cells := range t.Rows {
		w.AppendRow(cellsOf(cells))
	}
	var right []table.ColumnConfig
	for n, title := range t.Titles {
		if slices.Contains(t.Right, title) {
			right = append(right, table.ColumnConfig{Number: n + 1, Align: text.AlignRight,
				AlignHeader: text.AlignRight})
		}
	}
	w.SetColumnConfigs(right)
	w.SuppressTrailingSpaces()
	return w.Render()
}

func cellsOf(texts []string) (row table.Row) {
	for _, s := range texts {
		row = append(row, s)
	}
	return row
}

func plainStyle() table.Style {
	s := table.StyleDefault
	s.Box = table.StyleBoxDefault
	s.Box.PaddingLeft, s.Box.PaddingRight = "", "  "
	s.Options = table.OptionsNoBordersAndSeparators
	s.Format.Header = text.FormatDefault
	return s
}

// DrawFields draws a line for each field that is not empty.
func DrawFields(w *Page, fields [][2]string) {
	width := 0
	for _, f := range fields {
		width = max(width, len(f[0]))
	}
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(w, "%-*s  %s\n", width, f[0], Indented(f[1], width+2))
		}
	}
}

// escaped escapes what does not print in a text of JSON or YAML. Outside of strings there is no such thing.
func escaped(s, format string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || shown.Prints(r):
			b.WriteRune(r)
		case r <= 0xffff, format == outputYAML:
			b.WriteString(shown.Escaped(r))
		default:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		}
	}
	return b.String()
}

func LeaseCells(remaining, ttl time.Duration, cells int) string {
	full := 0
	if ttl > 0 && remaining > 0 {
		full = min(cells, max(1, int((remaining*time.Duration(cells)+ttl/2)/ttl)))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}

// Exactly is Moment with all that the server knows of the time.
func Exactly(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000 UTC") }

// Moment writes a time of the server; empty for zero.
func Moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000 UTC")
}

// Count is a number of things, such as "2 locks".
func Count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Mark stands before the verdict, for a person who has no time to read.
func Mark(s lockadmin.Severity) string {
	if s == "" {
		return "?" // nobody has looked
	}
	return strings.ToUpper(string(s))
}
