package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The values of --output.
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
	at, err := json.Marshal(o.At.Now())
	if err != nil {
		return err
	}
	all, err := json.Marshal(v)
	if err != nil {
		return err
	}
	standby := ""
	if o.Standby != nil {
		text, err := json.Marshal(o.Standby)
		if err != nil {
			return err
		}
		standby = fmt.Sprintf(`"standby":%s,`, text)
	}
	return WriteData(w, o.Output, json.RawMessage(fmt.Sprintf(`{"at":%s,%s%s`, at, standby, all[1:])))
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

// DrawTable draws rows under their titles. If the terminal is too narrow, it draws each row as a list of fields. A cell
// with a text from outside must have gone through shown.Text or shown.Name.
func DrawTable(w *Page, titles []string, rows [][]string, right ...int) {
	if drawn := TableOf(titles, rows, right...); w.Fits(drawn) {
		fmt.Fprintln(w, drawn)
		return
	}
	for n, cells := range rows {
		if n > 0 {
			fmt.Fprintln(w)
		}
		var fields [][2]string
		for i, title := range titles {
			fields = append(fields, [2]string{title, cells[i]})
		}
		DrawFields(w, fields)
	}
}

// Fits reports whether what was drawn is no wider than the page.
func (w *Page) Fits(drawn string) bool { return w.Width == 0 || text.LongestLineLen(drawn) <= w.Width }

// TableOf draws rows under their titles; right are the columns that stand at the right, from 0.
func TableOf(titles []string, rows [][]string, right ...int) string {
	t := table.NewWriter()
	t.SetStyle(plainStyle())
	t.AppendHeader(cellsOf(titles))
	for _, cells := range rows {
		t.AppendRow(cellsOf(cells))
	}
	var configs []table.ColumnConfig
	for _, r := range right {
		configs = append(configs, table.ColumnConfig{Number: r + 1, Align: text.AlignRight,
			AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(configs)
	t.SuppressTrailingSpaces()
	return t.Render()
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
			fmt.Fprintf(w, "%-*s  %s\n", width, f[0], strings.ReplaceAll(f[1], "\n", "\n"+strings.Repeat(" ", width+2)))
		}
	}
}

// escapeJSON escapes what does not print in a JSON text. Outside of strings there is no such thing.
func escapeJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || shown.Prints(r):
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

// LeaseBar draws how much of a lease remains.
func LeaseBar(remaining, ttl time.Duration) string { return LeaseCells(remaining, ttl, 10) }

// LeaseCells is LeaseBar with so many cells.
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
