package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// read gives a file of the repository.
func read(t *testing.T, path ...string) string {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(append([]string{root}, path...)...)))(t)
	return string(text)
}

// options gives the exported options of a package, and the fields of its Config.
func options(t *testing.T, dir string) (names, fields []string) {
	t.Helper()
	files := must.Get(filepath.Glob(filepath.Join(root, dir, "*.go")))(t)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file := must.Get(parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution))(t)
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv == nil && strings.HasPrefix(f.Name.Name, "With") {
				names = append(names, f.Name.Name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, is := n.(*ast.TypeSpec); is && s.Name.Name == "Config" {
				for _, f := range s.Type.(*ast.StructType).Fields.List {
					for _, name := range f.Names {
						if name.IsExported() {
							fields = append(fields, name.Name)
						}
					}
				}
			}
			return true
		})
	}
	return names, fields
}

func TestConfigurationNamesEveryOption(t *testing.T) {
	t.Parallel()
	page := read(t, "docs", "configuration.md")
	for dir, least := range map[string]int{"pglock": 5, "fencedstore": 5, "dashboard": 7, "leader": 4, "advisory": 2,
		"migrations": 1, "schedulers": 3, "otelpglock": 3} {
		found, fields := options(t, dir)
		if len(found)+len(fields) < least {
			t.Errorf("package %s: only the options %v and %v were found", dir, found, fields)
		}
		for _, name := range fields {
			if !regexp.MustCompile("(?m)^\\| (`" + dir + "\\.Config`: )?`" + name + "`").MatchString(page) {
				t.Errorf("docs/configuration.md does not name %s.Config.%s", dir, name)
			}
		}
		for _, name := range found {
			if !regexp.MustCompile(`\b` + dir + `\..*\b` + name + `\b`).MatchString(page) {
				t.Errorf("docs/configuration.md does not name %s.%s", dir, name)
			}
		}
	}
}

// row gives the line of a table that begins with a cell.
func row(t *testing.T, page, cell string) string {
	t.Helper()
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| "+cell) {
			return line
		}
	}
	t.Fatalf("no row begins with %q", cell)
	return ""
}

func TestConfigurationHasTheLimitsOfTheCode(t *testing.T) {
	t.Parallel()
	page := read(t, "docs", "configuration.md")
	short := func(d time.Duration) string {
		switch {
		case d%time.Hour == 0:
			return fmt.Sprintf("%d h", d/time.Hour)
		case d%time.Second == 0:
			return fmt.Sprintf("%d s", d/time.Second)
		}
		return fmt.Sprintf("%d ms", d/time.Millisecond)
	}
	count := func(n int) string {
		if n >= 1000 {
			return fmt.Sprintf("%d,%03d", n/1000, n%1000)
		}
		return fmt.Sprint(n)
	}
	for cell, wants := range map[string][]string{
		"`pglock.WithDefaultTTL`": {short(pglock.DefaultTTL), short(pglock.MinTTL) + " to " + short(pglock.MaxTTL)},
		"`pglock.WithSessionTTL`": {short(pglock.DefaultSessionTTL), short(pglock.MinTTL) + " to " +
			short(pglock.MaxTTL)},
		"`pglock.WithDefaultHolder`":   {count(pglock.MaxHolderBytes) + " bytes"},
		"`pglock.WithShared`":          {"1 to " + count(pglock.MaxLimit)},
		"`pglock.WithMetadata`":        {count(pglock.MaxMetadataBytes) + " bytes"},
		"a lock's name":                {count(pglock.MaxNameBytes) + " bytes"},
		"`fencedstore.Fence.Resource`": {count(pglock.MaxNameBytes) + " bytes"},
	} {
		line := row(t, page, cell)
		for _, want := range wants {
			if !strings.Contains(line, want) {
				t.Errorf("%q does not say %q", line, want)
			}
		}
	}
	schema := read(t, "migrations", "schema", "04_acquire.sql")
	most := regexp.MustCompile(`octet_length\(w\.metadata::text\) <= (\d+)`).FindStringSubmatch(schema)
	var bytes int
	if most == nil {
		t.Error("no limit of metadata is in the schema")
	} else if _, err := fmt.Sscan(most[1], &bytes); err != nil || !strings.Contains(page, count(bytes)+" bytes") {
		t.Errorf("docs/configuration.md does not say that the schema takes %s bytes of metadata", most[1])
	}
}

// CONTRIBUTING.md names what imports from internal/dev besides tests, and nothing else.
func TestOnlyWhatIsNamedImportsFromInternalDev(t *testing.T) {
	t.Parallel()
	rule := regexp.MustCompile("(?s)\n- Only tests import from `internal/dev`(.*?)[.]\n").FindStringSubmatch(
		read(t, "CONTRIBUTING.md"))
	if rule == nil {
		t.Fatal("CONTRIBUTING.md does not have the rule")
	}
	imports := make(map[string]bool) // by what is named
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(rule[1], -1) {
		imports[m[1]] = false
	}
	must.Do(t, fs.WalkDir(os.DirFS(root), ".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") ||
			strings.HasPrefix(file, "internal/dev/") ||
			!strings.Contains(read(t, file), `"github.com/pglock-dev/pglock/internal/dev/`) {
			return err
		}
		known := false
		for named := range imports {
			if strings.HasPrefix(file, named+"/") {
				imports[named], known = true, true
			}
		}
		if !known {
			t.Errorf("%s imports from internal/dev, and CONTRIBUTING.md does not name it", file)
		}
		return nil
	}))
	for named, does := range imports {
		if !does {
			t.Errorf("CONTRIBUTING.md says that %s imports from internal/dev", named)
		}
	}
}

// The alert about long waits leaves out the locks that elect a leader, by their names.
func TestNoElectionThatIsShownRaisesTheAlertAboutLongWaits(t *testing.T) {
	t.Parallel()
	if !strings.Contains(read(t, "deploy", "prometheus", "pglock.rules.yml"), `{lock!~"leader/.*"}`) {
		t.Error("the alert leaves out other names")
	}
	call := regexp.MustCompile(`(?:leader\.(?:New|Observe|Current)|NewElector)\(.*?"(.*?)"`)
	shown := 0
	for _, dir := range []string{"docs", "examples", "leader", "schedulers"} {
		must.Do(t, fs.WalkDir(os.DirFS(root), dir, func(file string, _ fs.DirEntry, err error) error {
			name, is := strings.CutSuffix(path.Base(file), ".go")
			if err != nil || strings.HasSuffix(name, "_test") && name != "example_test" ||
				!is && path.Ext(file) != ".md" {
				return err
			}
			for _, m := range call.FindAllStringSubmatch(read(t, file), -1) {
				if shown++; !strings.HasPrefix(m[1], "leader/") {
					t.Errorf("%s shows an election named %q", file, m[1])
				}
			}
			return nil
		}))
	}
	if shown < 15 {
		t.Errorf("only %d elections were found", shown)
	}
}

func TestChangesNameTheSchemaOfTheCode(t *testing.T) {
	t.Parallel()
	want := fmt.Sprintf("Schema version %d, `", pglock.SchemaVersion)
	if !strings.Contains(read(t, "CHANGELOG.md"), want) {
		t.Errorf("CHANGELOG.md does not say that it needs schema version %d", pglock.SchemaVersion)
	}
}
