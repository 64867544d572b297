package docs

import (
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

// The table of mutexes and goroutines in architecture.md names each file of the library that has some, and no other.
func TestArchitectureNamesAllMutexesAndGoroutines(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("architecture.md"))(t)
	type concurrency struct{ mutexes, goroutines bool }
	written := make(map[string]concurrency)
	row := regexp.MustCompile("(?m)^\\| `([^` ]+\\.go)` \\|(.*)\\|(.*)\\|$")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		written[m[1]] = concurrency{strings.TrimSpace(m[2]) != "", strings.TrimSpace(m[3]) != ""}
	}
	found := make(map[string]concurrency)
	for _, folder := range []string{"pglock", "fencedstore", "fencedstore/reversible", "fencedhttp", "leader",
		"advisory", "lockadmin",
		"dashboard",
		"migrations", "schedulers", "schedulers/gocron", "schedulers/cron", "otelpglock", "internal/*"} {
		files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no sources in %s: %v", folder, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
			var c concurrency
			ast.Inspect(tree, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					c.goroutines = true
				case *ast.CallExpr:
					if s, ok := n.Fun.(*ast.SelectorExpr); ok {
						c.goroutines = c.goroutines || s.Sel.Name == "Go" || selects(s, "time", "AfterFunc")
					}
				case *ast.SelectorExpr:
					c.mutexes = c.mutexes || selects(n, "sync", "Mutex", "RWMutex")
				}
				return true
			})
			if c != (concurrency{}) {
				found[strings.TrimPrefix(filepath.ToSlash(file), "../")] = c
			}
		}
	}
	for file, c := range found {
		if written[file] != c {
			t.Errorf("%s: the page says %+v, the source %+v", file, written[file], c)
		}
	}
	for file := range written {
		if _, has := found[file]; !has {
			t.Errorf("%s has neither mutexes nor goroutines", file)
		}
	}
}

// selects reports whether s is one of these names of a package.
func selects(s *ast.SelectorExpr, pkg string, names ...string) bool {
	x, ok := s.X.(*ast.Ident)
	for _, name := range names {
		if ok && x.Name == pkg && s.Sel.Name == name {
			return true
		}
	}
	return false
}
