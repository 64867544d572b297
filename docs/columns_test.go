package docs

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// No line of Go is longer than 120 columns, where a tab is four. Texts in backquotes, and what an example prints, are
// as long as they are.
func TestNoLineOfGoIsLongerThan120Columns(t *testing.T) {
	t.Parallel()
	read := 0
	err := fs.WalkDir(os.DirFS(".."), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") {
			return err
		}
		src, err := os.ReadFile("../" + file)
		if err != nil {
			return err
		}
		read++
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
		return nil
	})
	if err != nil || read < 500 {
		t.Errorf("%d files were read, %v", read, err)
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
