package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/stats"
)

// WriteText writes everything that a reader needs: place and method, a table for each workload, ratios, and the aims.
func (r *Results) WriteText(w io.Writer) error {
	var b strings.Builder
	r.head(&b)
	for _, name := range peer.Workloads() {
		r.workload(&b, name)
	}
	r.guarantees(&b)
	r.compared(&b)
	r.ratios(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Results) head(b *strings.Builder) {
	m := r.Machine
	fmt.Fprintf(b, "command      %s\n", r.Command)
	if r.Commit != "" {
		fmt.Fprintf(b, "commit       %s\n", r.Commit)
	}
	fmt.Fprintf(b, "when         %s, %s\n", r.Began.UTC().Format("2006-01-02 15:04 UTC"), r.Took.Round(time.Second))
	fmt.Fprintf(b, "measured     %d times in turns, %v each after a warm-up; medians, with the least and the most\n",
		r.Repetitions, r.Duration)
	fmt.Fprintf(b, "machine      %d processors (%s), %d GiB, Linux %s, %s\n", m.Processors, m.Model, m.MemoryBytes>>30,
		m.Kernel, m.Go)
	fmt.Fprintf(b, "disk         fdatasync of 8 KiB: %v, 99th percentile %v\n",
		m.Flush.Round(time.Microsecond), m.FlushWorst.Round(time.Microsecond))
	fmt.Fprintf(b, "load         %s before the start; %s of the machine went to others while the clock ran\n", m.Load,
		r.others())
	for _, s := range r.Servers {
		if s.Missing != "" {
			fmt.Fprintf(b, "NOT STARTED  %s: %s\n", s.Name, s.Missing)
			continue
		}
		fmt.Fprintf(b, "server       %s (%s): %s\n", s.Name, s.Version, s.Settings)
	}
	for _, path := range slices.Sorted(maps.Keys(r.Modules)) {
		fmt.Fprintf(b, "module       %s %s\n", path, r.Modules[path])
	}
	b.WriteByte('\n')
}

// others is what everything but client and server used of the machine, in W1, W2 and W5.
func (r *Results) others() string {
	var shares []float64
	for _, l := range r.Lines {
		for _, v := range l.all(Others) {
			if !math.IsNaN(v) {
				shares = append(shares, 100*v)
			}
		}
	}
	s := stats.Of(shares)
	return fmt.Sprintf("%s %% (most: %s %%)", Number(s.Median), Number(s.Max))
}

// workload writes a table with one part for each form, and notes on the peers in it or left out.
func (r *Results) workload(b *strings.Builder, w peer.Workload) {
	var lines []*Line
	for _, l := range r.Lines {
		if l.Workload == w {
			lines = append(lines, l)
		}
	}
	if len(lines) == 0 {
		return
	}
	t := newTable(tables[w].title)
	header := table.Row{"", "peer"}
	for _, c := range tables[w].columns {
		header = append(header, c.title)
	}
	t.AppendHeader(append(header, "durable", "fair", "token", "bound to"))
	kinds := make(map[string]peer.Kind)
	for _, k := range peer.All() {
		kinds[k.Name] = k
	}
	where := ""
	for _, l := range lines {
		if where != "" && where != l.Where {
			t.AppendSeparator()
		}
		first := ""
		if where != l.Where {
			first, where = l.Where, l.Where
		}
		row := table.Row{first, l.Peer}
		for _, c := range tables[w].columns {
			row = append(row, l.cell(c))
		}
		g := kinds[l.Peer].Guarantees
		t.AppendRow(append(row, short(g.Durable), short(g.Fair), short(g.Token), short(g.Bound)))
	}
	render(b, t)
	r.notes(b, w, lines, kinds)
	b.WriteByte('\n')
}

func (r *Results) notes(b *strings.Builder, w peer.Workload, lines []*Line, kinds map[string]peer.Kind) {
	for _, k := range peer.All() {
		if note := k.Notes[w]; note != "" && slices.Contains(r.Peers, k.Name) {
			fmt.Fprintf(b, "  %s: %s\n", k.Name, note)
		}
	}
	for _, l := range lines {
		for _, failed := range slices.Compact(slices.Clone(l.Failed)) {
			fmt.Fprintf(b, "  FAILED %s, %s: %s\n", l.Peer, l.Where, failed)
		}
	}
}

func (l *Line) cell(c column) string {
	s := l.spread(c.metric)
	switch {
	case c.worst:
		return Number(s.Max)
	case c.ranged:
		return Range(s)
	}
	return Number(s.Median)
}

// short is the first word, for a narrow table; the table of guarantees has the whole.
func short(guarantee string) string {
	word, _, _ := strings.Cut(guarantee, " ")
	return strings.TrimSuffix(word, ",")
}

func (r *Results) guarantees(b *strings.Builder) {
	t := newTable("The peers, by their own documentation")
	t.AppendHeader(table.Row{"peer", "what it is", "a grant survives a crash", "fair", "fencing token", "bound to",
		"settings"})
	for _, k := range peer.All() {
		if slices.ContainsFunc(r.Lines, func(l *Line) bool { return l.Peer == k.Name }) {
			g := k.Guarantees
			t.AppendRow(table.Row{k.Name, k.Is, g.Durable, g.Fair, g.Token, g.Bound, k.Settings})
		}
	}
	t.SetColumnConfigs([]table.ColumnConfig{wrapped(2, 36), wrapped(4, 20), wrapped(5, 20), wrapped(6, 20),
		wrapped(7, 44)})
	render(b, t)
	b.WriteByte('\n')
}

func (r *Results) ratios(b *strings.Builder) {
	if len(r.Ratios) == 0 {
		return
	}
	t := newTable("The aims")
	t.AppendHeader(table.Row{"", "where", "what", "ours", "other", "", "ratio", "aim", "met", "bare SQL"})
	var last peer.Workload
	for _, q := range r.Ratios {
		if last != "" && last != q.Workload {
			t.AppendSeparator()
		}
		last = q.Workload
		t.AppendRow(table.Row{
			string(q.Workload), q.Where, names[q.Metric], Number(float64(q.Ours)), q.other(), Number(float64(q.Other)),
			q.ratio(), q.bound(), q.met(), Number(float64(q.Bare)),
		})
	}
	render(b, t)
	b.WriteString("  ratio: median of the ratios of each repetition (least–most); where there is no other, the " +
		"figure itself\n  bare SQL: the same ratio for the best of the bare statements, without functions, rights " +
		"and queue\n")
}

// other names the peer that ours is compared with, or its form.
func (q Ratio) other() string { return cmp.Or(q.Beside, q.Than) }

func (q Ratio) ratio() string {
	text := Number(float64(q.Ratio))
	if q.Min != q.Max {
		text += " (" + Number(float64(q.Min)) + "–" + Number(float64(q.Max)) + ")"
	}
	return text
}

func (q Ratio) bound() string {
	sign := "≥ "
	if q.Most {
		sign = "≤ "
	}
	return sign + Number(float64(q.Aim))
}

func (q Ratio) met() string {
	switch {
	case q.Met == nil:
		return "-"
	case *q.Met:
		return "yes"
	}
	return "NO"
}

func wrapped(column, width int) table.ColumnConfig {
	return table.ColumnConfig{Number: column, WidthMax: width, WidthMaxEnforcer: text.WrapSoft}
}

// render writes the table without blanks at the ends of lines.
func render(b *strings.Builder, t table.Writer) {
	for line := range strings.Lines(t.Render() + "\n") {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

// newTable has plain lines and numbers at the right.
func newTable(title string) table.Writer {
	t := table.NewWriter()
	t.SetTitle(title)
	style := table.StyleLight
	style.Format.Header, style.Format.HeaderAlign = text.FormatDefault, text.AlignLeft
	style.Options.DrawBorder = false
	style.Title.Format = text.FormatDefault
	t.SetStyle(style)
	return t
}
