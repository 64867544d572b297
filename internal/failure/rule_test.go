package failure

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
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
		found := must.Get(filepath.Glob(filepath.Join("..", "..", folder, "*.go")))(t)
		for _, path := range found {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			files++
			text := must.Get(os.ReadFile(path))(t)
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
