package migrating_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

var update = flag.Bool("update", false, "write the functions into docs/migrating.md")

// block is a function in the docs: <!-- file function --> and the code.
var block = regexp.MustCompile("(?s)<!-- (\\S+\\.go) (\\w+) -->\n\n```go\n(.*?)```\n")

func TestTheDocsShowTheProgramsThatRun(t *testing.T) {
	const page = "../../docs/migrating.md"
	text := must.Get(os.ReadFile(page))(t)
	shown := make(map[string]bool)
	fresh := block.ReplaceAllStringFunc(string(text), func(found string) string {
		parts := block.FindStringSubmatch(found)
		code := source(t, parts[1], parts[2])
		if parts[3] != code && !*update {
			t.Errorf("docs/migrating.md shows %s of %s as it is not; go test -run Docs -update . writes it anew",
				parts[2], parts[1])
		}
		shown[parts[1]] = true
		return fmt.Sprintf("<!-- %s %s -->\n\n```go\n%s```\n", parts[1], parts[2], code)
	})
	if *update {
		must.Do(t, os.WriteFile(page, []byte(fresh), 0o644))
	}
	files, err := filepath.Glob("from*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("no programs", err)
	}
	for _, file := range files {
		if !shown[file] && !strings.HasSuffix(file, "_test.go") {
			t.Errorf("docs/migrating.md shows nothing of %s", file)
		}
	}
}

// source is a function with its comment.
func source(t *testing.T, file, function string) string {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	files := token.NewFileSet()
	parsed := must.Get(parser.ParseFile(files, file, text, parser.ParseComments))(t)
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == function {
			from := f.Pos()
			if f.Doc != nil {
				from = f.Doc.Pos()
			}
			return string(text[files.Position(from).Offset:files.Position(f.End()).Offset]) + "\n"
		}
	}
	t.Fatalf("%s has no function %s", file, function)
	return ""
}
