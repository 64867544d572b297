package docs

import (
	"bytes"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

// No line of Go is longer than 120 columns, where a tab is four. Texts in backquotes, and what an example prints, are
// as long as they are.
func TestNoLineOfGoIsLongerThan120Columns(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "*.go")
	list.Dir = ".."
	files, err := list.Output()
	if err != nil {
		t.Skipf("this is no checkout of git: %v", err)
	}
	for file := range strings.SplitSeq(strings.Trim(string(files), "\x00"), "\x00") {
		src, err := os.ReadFile("../" + file)
		if err != nil {
			continue // it is about to be removed
		}
		quoted := rawLines(src)
		n, printed := 0, false
		for line := range bytes.Lines(src) {
			n++
			printed = bytes.HasPrefix(line, []byte("\t// Output:")) || printed && line[0] == '\t'
			columns := utf8.RuneCount(bytes.TrimRight(line, "\n")) + 3*bytes.Count(line, []byte("\t"))
			if columns > 120 && !quoted[n] && !printed {
				t.Errorf("%s:%d has %d columns", file, n, columns)
			}
		}
	}
}

// rawLines are the lines that a text in backquotes is on.
func rawLines(src []byte) map[int]bool {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	lines := map[int]bool{}
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return lines
		}
		if kind == token.STRING && text[0] == '`' {
			first := file.Line(pos)
			for n := range 1 + strings.Count(text, "\n") {
				lines[first+n] = true
			}
		}
	}
}
