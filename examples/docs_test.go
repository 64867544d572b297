package examples_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

var update = flag.Bool("update", false, "write the examples' code into docs/recipes.md and docs/scaling.md")

// shown is a file that a page shows: its name in a comment, and then its code.
var shown = regexp.MustCompile("(?s)<!-- (examples/[^ ]+) -->\n```go\n(.*?)```\n")

// declarations is what follows the imports of a file.
func declarations(t *testing.T, path string) string {
	t.Helper()
	source := must.Get(os.ReadFile(path))(t)
	_, rest, found := strings.Cut(string(source), "\n)\n")
	if !found {
		t.Fatalf("%s has no imports", path)
	}
	return strings.TrimLeft(rest, "\n")
}

func TestTheRecipesInTheDocumentationAreTheFilesThatAreTested(t *testing.T) {
	seen := map[string]bool{}
	for _, page := range []string{"../docs/recipes.md", "../docs/scaling.md"} {
		before := must.Get(os.ReadFile(page))(t)
		after := shown.ReplaceAllStringFunc(string(before), func(part string) string {
			path := shown.FindStringSubmatch(part)[1]
			seen[path] = true
			return "<!-- " + path + " -->\n```go\n" + declarations(t, filepath.Join("..", path)) + "```\n"
		})
		switch {
		case after == string(before):
		case *update:
			must.Do(t, os.WriteFile(page, []byte(after), 0o600))
		default:
			t.Errorf("%s shows other code than the files have: go test ./examples -run TheRecipes -update", page)
		}
	}
	for name := range told {
		if path := "examples/" + name + "/job.go"; !seen[path] {
			t.Errorf("no page shows %s", path)
		}
	}
}
