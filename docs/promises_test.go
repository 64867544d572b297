package docs_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

var update = flag.Bool("update", false, "write the promises of docs/guarantees.md into README.md and pglock/doc.go")

// promise is a row of the table in docs/guarantees.md: its number, its sentence in bold, and its tests.
var promise = regexp.MustCompile(`(?m)^\| (I\d+) \| \*\*(.+?)\*\*.*? \| (.+) \|$`)

// The promises stand in docs/guarantees.md. The README and the package's comment have its sentences in bold, and no
// others.
func TestThePromisesStandOnce(t *testing.T) {
	t.Parallel()
	const header = "| | promise | tests |\n| --- | --- | --- |\n"
	table := header
	var list strings.Builder
	rows := promise.FindAllStringSubmatch(read(t, "docs", "guarantees.md"), -1)
	for i, row := range rows {
		number, sentence, tests := row[1], row[2], row[3]
		if want := fmt.Sprintf("I%d", i+1); number != want {
			t.Fatalf("docs/guarantees.md has promise %s, want %s", number, want)
		}
		links := link.FindAllStringSubmatch(tests, -1)
		if len(links) == 0 {
			t.Errorf("%s: docs/guarantees.md links to no test of it", number)
		}
		for _, l := range links {
			if !regexp.MustCompile(`func Test(\w+_)?` + number + `_`).MatchString(read(t, "docs", l[1])) {
				t.Errorf("%s: docs/guarantees.md links to %s, which has no test of it", number, l[1])
			}
		}
		table += fmt.Sprintf("| %s | %s | %s |\n", number, sentence, strings.ReplaceAll(tests, "](../", "]("))
		item(&list, number+": "+strings.ReplaceAll(sentence, "`", ""))
	}
	if len(rows) != 11 {
		t.Errorf("docs/guarantees.md has %d promises, want 11", len(rows))
	}
	same(t, "README.md", regexp.MustCompile(regexp.QuoteMeta(header)+`(?:\| I\d+ .*\n)*`), table)
	same(t, "pglock/doc.go", regexp.MustCompile(`(?://   - I\d+: .*\n(?://     .*\n)*)+`), list.String())
}

// item writes an item of a list in a comment, in lines of at most 120 columns.
func item(list *strings.Builder, text string) {
	line := "//   -"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 120 {
			list.WriteString(line + "\n")
			line = "//    "
		}
		line += " " + word
	}
	list.WriteString(line + "\n")
}

// same fails unless the one place of a file that matches is as wanted; with -update it makes it so.
func same(t *testing.T, file string, place *regexp.Regexp, want string) {
	t.Helper()
	text := read(t, file)
	found := place.FindAllString(text, -1)
	switch {
	case len(found) != 1:
		t.Errorf("%s has %d lists of promises, want one", file, len(found))
	case found[0] == want:
	case *update:
		text = strings.Replace(text, found[0], want, 1)
		must.Note(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o644))
	default:
		t.Errorf("%s has other promises than docs/guarantees.md; go test ./docs -run Promises -update copies them:\n%s",
			file, found[0])
	}
}

// A page that a comment, a message or a hint names exists, and so does its heading.
func TestEveryPageThatTheCodeNamesExists(t *testing.T) {
	t.Parallel()
	all, checked := pages(t), 0
	name := regexp.MustCompile(`\bdocs/([\w-]+(?:/[\w-]+)*\.md)(?:#([\w-]+))?`)
	for _, path := range sources(t) {
		for _, l := range name.FindAllStringSubmatch(read(t, path), -1) {
			checked++
			text, is := all[filepath.Join(root, "docs", l[1])]
			if !is || l[2] != "" && !anchors(text)[l[2]] {
				t.Errorf("%s names %s, which is not there", path, l[0])
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d names were found", checked)
	}
}

// sources gives the files of code, by their path below the root.
func sources(t *testing.T) (files []string) {
	t.Helper()
	must.Do(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".go" || filepath.Ext(path) == ".sql":
			short, err := filepath.Rel(root, path)
			files = append(files, short)
			return err
		}
		return nil
	}))
	return files
}
