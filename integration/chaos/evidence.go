//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
)

// evidence is a folder with the full record. It is kept if there is a violation, and removed otherwise.
type evidence struct {
	problems io.Writer
	heard    func(first bool)
	folder   string
	keep     bool // in any case

	mu         sync.Mutex
	history    *os.File
	lines      *bufio.Writer
	size       int
	violations int
	byCheck    map[string]int
}

const (
	shownOfEach  = 3        // violations of one check, in full
	linesShown   = 16       // of the evidence of each, and of what happened lately
	historyLimit = 64 << 20 // bytes of one file; the one before is kept too
)

func openEvidence(problems io.Writer, heard func(first bool), keep bool) (_ *evidence, err error) {
	e := &evidence{problems: problems, heard: heard, keep: keep, byCheck: make(map[string]int)}
	if e.folder, err = os.MkdirTemp("", "pglock-chaos-"); err != nil {
		return nil, err
	}
	return e, e.begin()
}

// begin opens a new file for the history, and keeps the one before.
func (e *evidence) begin() (err error) {
	name := filepath.Join(e.folder, "history.txt")
	if e.history != nil {
		if err := errors.Join(e.lines.Flush(), e.history.Close(),
			os.Rename(name, filepath.Join(e.folder, "history.before.txt"))); err != nil {
			return err
		}
	}
	if e.history, err = os.Create(name); err != nil {
		return err
	}
	e.lines, e.size = bufio.NewWriterSize(e.history, 64<<10), 0
	return nil
}

// line adds to the history.
func (e *evidence) line(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, err := fmt.Fprintln(e.lines, text)
	if e.size += n; err == nil && e.size > historyLimit {
		err = e.begin()
	}
	if err != nil {
		fmt.Fprintln(e.problems, "chaos: the history cannot be written:", err)
	}
}

// violation writes a violation down and shows the first of each check.
func (e *evidence) violation(v check.Violation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.violations++
	e.byCheck[v.Check]++
	head := fmt.Sprintf("VIOLATION of %q at %s: %s\n", v.Check, check.SayTime(v.At), v.What)
	full := head + indented(v.Evidence)
	if len(v.Trail) > 0 {
		full += "    what happened to it lately, oldest first:\n" + indented(v.Trail)
	}
	if e.byCheck[v.Check] <= shownOfEach {
		evidence, trail := v.Evidence[:min(linesShown, len(v.Evidence))], v.Trail[max(0, len(v.Trail)-linesShown):]
		fmt.Fprintf(e.problems, "\n%s%s    ...\n%s    all of it is in %s\n", head, indented(evidence), indented(trail),
			filepath.Join(e.folder, "violations.txt"))
	}
	f, err := os.OpenFile(filepath.Join(e.folder, "violations.txt"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(full + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(e.problems, "chaos: the evidence cannot be written:", err)
	}
	e.heard(e.violations == 1)
}

func indented(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString("    " + line + "\n")
	}
	return b.String()
}

func (e *evidence) write(name, text string) {
	if err := os.WriteFile(filepath.Join(e.folder, name), []byte(text), 0o600); err != nil {
		fmt.Fprintln(e.problems, "chaos: the evidence cannot be written:", err)
	}
}

func (e *evidence) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.violations
}

// counts are the violations of each check.
func (e *evidence) counts() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	copied := make(map[string]int, len(e.byCheck))
	for name, n := range e.byCheck {
		copied[name] = n
	}
	return copied
}

// kept is the folder, when it is kept.
func (e *evidence) kept() string {
	if e.count() == 0 && !e.keep {
		return ""
	}
	return e.folder
}

func (e *evidence) close() error {
	err := errors.Join(e.lines.Flush(), e.history.Close())
	if folder := e.kept(); folder != "" {
		fmt.Fprintf(e.problems, "\nchaos: the evidence is in %s\n", folder)
		return err
	}
	return errors.Join(err, os.RemoveAll(e.folder))
}
