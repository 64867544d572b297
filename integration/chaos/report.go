//go:build unix

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
	"github.com/pglock-dev/pglock/integration/chaos/internal/trend"
)

// tables are what the run has to tell at its end.
func (l *lab) tables() (all []table.Writer) {
	add := func(header ...any) table.Writer {
		t := table.NewWriter()
		t.SetStyle(table.StyleLight)
		t.AppendHeader(header)
		all = append(all, t)
		return t
	}
	faults := add("fault", "what happens", "times", "took effect", "first grant after it", "first write", "overtaken",
		"operations meanwhile", "violations meanwhile")
	l.faultRows(faults)
	if t := l.outages.table(); t != nil {
		all = append(all, t)
	}
	operations := add("operation", "ok", "other outcomes")
	operations.SetColumnConfigs([]table.ColumnConfig{{Number: 3, WidthMax: 100}})
	counts := l.judge.Counts()
	for _, how := range sorted(counts) {
		var others []string
		for _, class := range sorted(counts[how]) {
			if class != "ok" {
				others = append(others, fmt.Sprintf("%s %d", class, counts[how][class]))
			}
		}
		operations.AppendRow(table.Row{how, counts[how]["ok"], strings.Join(others, ", ")})
	}
	latencies := add("took", "calls", "p50", "p99", "p99.9", "longest", "calls in calm", "p50", "p99", "p99.9",
		"longest")
	for _, kind := range []string{tried, acquired, wrote} {
		row := table.Row{kind}
		for _, s := range []trend.Spread{l.endurance.took[kind].all, l.endurance.took[kind].calm} {
			row = append(row, len(s))
			for _, part := range []float64{0.5, 0.99, 0.999, 1} {
				row = append(row, trend.SayTime(s.Quantile(part)))
			}
		}
		latencies.AppendRow(row)
	}
	if l.report != "" {
		growth := add("grows?", "second third", "last third", "bound", "")
		for _, s := range l.endurance.series {
			if g := s.Growth(); s.Bound != (trend.Bound{}) {
				growth.AppendRow(table.Row{s.Name, s.Unit.Say(g.Second), s.Unit.Say(g.Last), s.Unit.Say(g.Most),
					map[bool]string{true: "GROWN"}[g.Beyond()] + map[bool]string{false: "too few samples"}[g.Judged]})
			}
		}
	}
	violations := add("violations", "count")
	found := l.evidence.counts()
	for _, c := range check.Names {
		found[c.Name] += 0
	}
	for _, name := range sorted(found) {
		violations.AppendRow(table.Row{name, found[name]})
	}
	return all
}

// faultRows are a line for each kind of fault, with how soon clients went on: the median, and the longest. Where
// another fault concerned them before, only the longest of all is told.
func (l *lab) faultRows(t table.Writer) {
	count := l.injected.Count()
	for _, name := range []string{nothing, nothingOfOne} {
		count[name] = len(l.endurance.recovery.Of(name).Alone[trend.Write])
	}
	for _, name := range sorted(count) {
		h := l.endurance.recovery.Of(name)
		var overtaken []string
		if s := h.Overtaken[trend.Write]; len(s) > 0 {
			overtaken = append(overtaken, fmt.Sprintf("%d, longest %s", len(s), trend.SayTime(s.Quantile(1))))
		}
		if n := h.Unfinished[trend.Write]; n > 0 {
			overtaken = append(overtaken, fmt.Sprintf("%d by the end", n))
		}
		about := ""
		if n := slices.IndexFunc(l.faults, func(f fault) bool { return f.name == name }); n >= 0 {
			about = l.faults[n].about
		}
		row := table.Row{name, about, count[name], "",
			h.Alone[trend.Grant].MedianAndMost(), h.Alone[trend.Write].MedianAndMost(),
			strings.Join(overtaken, "; "), "", ""}
		if d := l.endurance.during[name]; d != nil {
			row[3], row[7], row[8] = d.effects, d.operations, d.violations
		}
		t.AppendRow(row)
	}
}

// summary is the report for a terminal.
func (l *lab) summary() string {
	var b strings.Builder
	tables := l.tables()
	tables[0].SetColumnConfigs([]table.ColumnConfig{{Number: 2, Hidden: true}}) // --list says what happens
	for _, t := range tables {
		fmt.Fprintf(&b, "%s\n\n", t.Render())
	}
	if idle := l.idle(); len(idle) > 0 {
		fmt.Fprintf(&b, "these faults never took effect: %s\n", strings.Join(idle, ", "))
	}
	fmt.Fprintf(&b, "seed %d, %v, violations: %d\n", l.seed, time.Since(l.began).Round(time.Second), l.evidence.count())
	return b.String()
}

// writeReport writes report.md and report.svg into the folder that --report names.
func (l *lab) writeReport() error {
	about := fmt.Sprintf("%v, seed %d, %d processes with %d goroutines each, %s, %s, %d processors",
		time.Since(l.began).Round(time.Second), l.seed, l.workers, l.goroutines, l.server, runtime.GOOS,
		runtime.NumCPU())
	var b strings.Builder
	fmt.Fprintf(&b, "# A run of the laboratory\n\n%s. Violations: %d.\n\n![what was measured](report.svg)\n\n", about,
		l.evidence.count())
	for _, t := range l.tables() {
		fmt.Fprintf(&b, "%s\n\n", t.RenderMarkdown())
	}
	named := func(names ...string) (lines []*trend.Series) {
		for _, name := range names {
			lines = append(lines, l.endurance.named(name))
		}
		return lines
	}
	panels := []trend.Panel{
		{Title: "memory", Lines: named("memory", "live heap")},
		{Title: "goroutines", Lines: named("goroutines")},
		{Title: "connections", Lines: named("connections")},
		{Title: "tables", Lines: named("tables")},
		{Title: "indexes", Lines: named("indexes")},
		{Title: "dead tuples", Lines: named("dead tuples")},
		{Title: "operations a second", Lines: named("operations")},
	}
	for _, kind := range []string{tried, acquired, wrote} {
		panels = append(panels, trend.Panel{Title: kind, Lines: named(kind+", p50", kind+", p99"), Log: true})
	}
	for _, s := range l.endurance.series {
		if !s.Growth().Beyond() {
			continue
		}
		panels = append(panels, trend.Panel{Title: "GROWN: " + s.Name, Lines: []*trend.Series{s}})
		fmt.Fprintf(&b, "## %s has grown\n\n", s.Name)
		for _, p := range s.Points {
			fmt.Fprintf(&b, "    %5.0fs %s\n", p.At.Seconds(), s.Unit.Say(p.Value))
		}
		b.WriteString("\n")
	}
	svg := trend.Chart("Through the run: marks part its thirds, dashes are bounds", about, l.duration, panels)
	return errors.Join(os.MkdirAll(l.report, 0o755),
		os.WriteFile(filepath.Join(l.report, "report.md"), []byte(b.String()), 0o644),
		os.WriteFile(filepath.Join(l.report, "report.svg"), []byte(svg), 0o644))
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// operations are how many there were so far.
func (l *lab) operations() (n int) {
	for _, classes := range l.judge.Counts() {
		for _, of := range classes {
			n += of
		}
	}
	return n
}
