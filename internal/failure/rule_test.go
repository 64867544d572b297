package failure

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Nobody but failure puts the name of a package in front of another error: so it is there once, whatever is inside.
func TestOnlyFailurePutsTheNameOfAPackageInFrontOfAnError(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`fmt\.Errorf\("` +
		`(pglock|fencedstore|fencedhttp|leader|advisory|lockadmin|reversible|schedulers|migrations|dashboard|otelpglock): [^"]*%w`)
	files := 0
	for _, folder := range []string{"pglock", "fencedstore", "fencedstore/reversible", "fencedhttp", "leader",
		"advisory", "lockadmin",
		"schedulers", "schedulers/*", "migrations", "dashboard", "internal/server", "internal/protocol",
		"internal/listener", "internal/metrics"} {
		found, err := filepath.Glob(filepath.Join("..", "..", folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			files++
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for n, line := range strings.Split(string(text), "\n") {
				if named.MatchString(line) {
					t.Errorf("%s:%d: use failure.At or failure.Told: %s", path, n+1, strings.TrimSpace(line))
				}
			}
		}
	}
	if files < 100 {
		t.Errorf("only %d files were looked at", files)
	}
}
