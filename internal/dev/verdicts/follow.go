package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// An event is a line of go test -json (cmd/test2json).
type event struct {
	Action, Package, Test, Output string
}

// A verdict is what is kept of a test: pass, fail or skip, and why it was skipped.
type verdict struct {
	Package, Test, Action, Why string
}

// place is a test, or with an empty name its package.
type place struct{ pkg, test string }

// follow prints what go test would print, and writes the verdicts. It fails if a package has failed, which go test
// itself says only to those who look at its exit code.
func follow(in io.Reader, out, kept io.Writer) error {
	said := map[place]*strings.Builder{}
	var failed []string // what the failed packages and tests have said, once more at the end, where people look first
	verdicts := json.NewEncoder(kept)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text()) // of the go command itself
			continue
		}
		at := place{e.Package, e.Test}
		switch e.Action {
		case "output", "build-output":
			if e.Test != "" {
				if said[at] == nil {
					said[at] = &strings.Builder{}
				}
				said[at].WriteString(e.Output)
			} else if e.Output != "PASS\n" {
				fmt.Fprint(out, e.Output)
			}
		case "pass", "skip", "fail":
			if e.Test != "" {
				if err := verdicts.Encode(verdict{e.Package, e.Test, e.Action, why(e.Action, said[at])}); err != nil {
					return err
				}
			}
			if e.Action == "fail" {
				failed = append(failed, tell(said, at))
				fmt.Fprint(out, failed[len(failed)-1])
			}
			delete(said, at)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(failed) == 0 {
		return nil
	}
	fmt.Fprintln(out, "== what failed, once more:")
	for _, said := range failed {
		fmt.Fprint(out, begun(said))
	}
	return errors.New("tests failed")
}

// why is the reason that a skipped test gave.
func why(action string, said *strings.Builder) string {
	if action != "skip" || said == nil {
		return ""
	}
	for line := range strings.Lines(said.String()) {
		if _, reason, is := strings.Cut(strings.TrimSpace(line), "_test.go:"); is {
			_, reason, _ = strings.Cut(reason, ": ")
			return reason
		}
	}
	return "it does not say why"
}

// tell is what a failed test has said; of a failed package, what tests have said that never ended.
func tell(said map[place]*strings.Builder, failed place) string {
	if failed.test != "" {
		return words(failed, said[failed])
	}
	var all strings.Builder
	for _, at := range slices.SortedFunc(maps.Keys(said), func(a, b place) int {
		return strings.Compare(a.test, b.test)
	}) {
		if at.pkg == failed.pkg {
			all.WriteString(words(at, said[at]))
			delete(said, at)
		}
	}
	return all.String()
}

// begun is the beginning of what was said, as of a panic that tells of each goroutine.
func begun(said string) string {
	const most = 40
	if lines := slices.Collect(strings.Lines(said)); len(lines) > most {
		return strings.Join(lines[:most], "") + fmt.Sprintf("… and %d lines more, above\n", len(lines)-most)
	}
	return said
}

// words leaves out the lines that say only that a test goes on; if there are no others, it is the empty string.
func words(at place, said *strings.Builder) string {
	if said == nil {
		return ""
	}
	var all strings.Builder
	for line := range strings.Lines(said.String()) {
		if !strings.HasPrefix(line, "=== ") {
			all.WriteString(line)
		}
	}
	if all.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("=== %s %s\n%s", at.pkg, at.test, all.String())
}
