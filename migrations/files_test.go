package migrations_test

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// steps are the plain files of one direction, in the order in which they are applied.
func steps(t *testing.T, direction string) []string {
	t.Helper()
	names, err := fs.Glob(migrations.Files(), "*."+direction+".sql") // sorted
	if err != nil || len(names) != migrations.Latest {
		t.Fatalf("%q, %v", names, err)
	}
	if direction == "down" {
		slices.Reverse(names)
	}
	return names
}

func TestFilesComeInPairsNumberedWithoutAGapUpToLatest(t *testing.T) {
	t.Parallel()
	names := must.Get(fs.Glob(migrations.Files(), "*"))(t)
	form := regexp.MustCompile(`^(\d{6})_([a-z0-9_]+)\.(up|down)\.sql$`)
	titles := make(map[string]string) // of number and direction
	for _, name := range names {
		parts := form.FindStringSubmatch(name)
		if parts == nil {
			t.Errorf("%s has not the form NNNNNN_title.up.sql or NNNNNN_title.down.sql", name)
			continue
		}
		if other, twice := titles[parts[1]+parts[3]]; twice {
			t.Errorf("two files number %s: %s and %s", parts[1], other, parts[2])
		}
		titles[parts[1]+parts[3]] = parts[2]
		if content, err := fs.ReadFile(migrations.Files(), name); err != nil ||
			strings.TrimSpace(string(content)) == "" {
			t.Errorf("%s is empty, %v", name, err)
		}
	}
	for version := 1; version <= migrations.Latest; version++ {
		number := fmt.Sprintf("%06d", version)
		up, down := titles[number+"up"], titles[number+"down"]
		if up == "" || up != down {
			t.Errorf("version %d has the files %q up and %q down", version, up, down)
		}
	}
	if len(titles) != 2*migrations.Latest {
		t.Errorf("%d files for %d versions", len(titles), migrations.Latest)
	}
}

func TestLatestIsTheVersionThatTheLibraryNeedsAndTheSchemaSays(t *testing.T) {
	t.Parallel()
	if migrations.Latest != pglock.SchemaVersion {
		t.Errorf("Latest is %d, the library needs %d", migrations.Latest, pglock.SchemaVersion)
	}
	says := regexp.MustCompile(`(?s)FUNCTION schema_version\(\).*?'SELECT (\d+)'`)
	var last string
	for _, name := range steps(t, "up") {
		up := contents(t, name)
		if said := says.FindStringSubmatch(up); said != nil {
			last = said[1]
		}
	}
	if last != strconv.Itoa(migrations.Latest) {
		t.Errorf("schema_version() says %q, want %d", last, migrations.Latest)
	}
}

// In a Turkish database the capital of i has a dot.
func TestNoLetterIsChangedByTheRulesOfTheDatabasesLanguage(t *testing.T) {
	t.Parallel()
	changes := regexp.MustCompile(`(?is)\b(?:upper|lower|initcap)\((?:[^()]|\([^()]*\))*\)|regexp_\w+\([^;]{0,400}'i'\)|` +
		`\S+\s+(?:COLLATE "C"\s+)?!?~~?\*|\S+\s+ILIKE`)
	for _, name := range slices.Concat(steps(t, "up"), steps(t, "down")) {
		for _, found := range changes.FindAllString(contents(t, name), -1) {
			if !strings.Contains(found, `COLLATE "C"`) {
				t.Errorf("%s: %s needs COLLATE \"C\"", name, found)
			}
		}
	}
}

func TestFilesRefuseServersOlderThan14(t *testing.T) {
	t.Parallel()
	up := contents(t, "000001_pglock.up.sql")
	check, create := strings.Index(up, "server_version_num')::int < 140000"), strings.Index(up, "CREATE ")
	if check < 0 || create < check {
		t.Errorf("the check of the server's version stands at %d, the first CREATE at %d", check, create)
	}
}
