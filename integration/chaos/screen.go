//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sys/unix"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
)

// screen is where the run tells how it goes: lines on a log, one line that is redrawn at a terminal.
type screen struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	drawn    bool
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if f, is := out.(*os.File); is {
		_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		s.terminal = err == nil
	}
	return s
}

func (s *screen) say(format string, args ...any) {
	s.print(fmt.Sprintf(format, args...) + "\n")
}

func (s *screen) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drawn {
		fmt.Fprint(s.out, "\r\033[K")
		s.drawn = false
	}
	fmt.Fprint(s.out, text)
}

// draw shows a line of progress in the place of the one before.
func (s *screen) draw(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminal {
		fmt.Fprintln(s.out, text)
		return
	}
	fmt.Fprint(s.out, "\r\033[K"+text)
	s.drawn = true
}

// progress tells how it goes until ctx ends.
func (l *lab) progress(ctx context.Context) {
	every := 5 * time.Second
	if l.screen.terminal {
		every = 500 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			operations, faults := 0, 0
			for _, classes := range l.judge.Counts() {
				for _, n := range classes {
					operations += n
				}
			}
			for _, n := range l.injected.Count() {
				faults += n
			}
			l.screen.draw(fmt.Sprintf("%5.0fs  %d operations, %d faults, %d violations  %s",
				time.Since(l.began).Seconds(), operations, faults, l.evidence.count(), strings.Join(l.active(), ", ")))
		}
	}
}

// report is the tables at the end.
func (l *lab) report() string {
	var b strings.Builder
	counted := func(title string, count map[string]int) {
		t := table.NewWriter()
		t.SetStyle(table.StyleLight)
		t.AppendHeader(table.Row{title, "count"})
		for _, name := range sorted(count) {
			t.AppendRow(table.Row{name, count[name]})
		}
		fmt.Fprintf(&b, "%s\n\n", t.Render())
	}
	counted("fault", l.injected.Count())
	b.WriteString(l.outages.table())

	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"operation", "ok", "other outcomes"})
	counts := l.judge.Counts()
	for _, how := range sorted(counts) {
		var others []string
		for _, class := range sorted(counts[how]) {
			if class != "ok" {
				others = append(others, fmt.Sprintf("%s %d", class, counts[how][class]))
			}
		}
		t.AppendRow(table.Row{how, counts[how]["ok"], strings.Join(others, ", ")})
	}
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 3, WidthMax: 100}})
	fmt.Fprintf(&b, "%s\n\n", t.Render())

	violations := l.evidence.counts()
	for _, c := range check.Names {
		violations[c.Name] += 0
	}
	counted("violations", violations)
	fmt.Fprintf(&b, "seed %d, %v, violations: %d\n", l.seed, time.Since(l.began).Round(time.Second), l.evidence.count())
	return b.String()
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.SortFunc(names, cmp.Compare[string])
	return names
}
