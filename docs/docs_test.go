// Package docs_test compares the pages with the repository: links, the index, lengths, SQL, and facts of the code.
package docs_test

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

const root = ".."

// pages gives the text of every page of the repository, by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	must.Do(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		found[path] = string(text)
		return err
	}))
	if len(found) < 20 {
		t.Fatalf("only %d pages were found", len(found))
	}
	return found
}

var (
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	code    = regexp.MustCompile("`[^`\n]+`")
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	named   = regexp.MustCompile(`(?m)^\[[^\]]+\]: (\S+)$`)
	heading = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	target  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors gives the anchors of a page's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		var a strings.Builder
		for _, r := range strings.ToLower(target.ReplaceAllString(strings.TrimSpace(h[1]), "$1")) {
			switch {
			case r == ' ':
				a.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				a.WriteRune(r)
			}
		}
		found[a.String()] = true
	}
	return found
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	all := pages(t)
	checked := 0
	for path, text := range all {
		prose := code.ReplaceAllString(fenced.ReplaceAllString(text, ""), "code")
		for _, l := range append(link.FindAllStringSubmatch(prose, -1), named.FindAllStringSubmatch(prose, -1)...) {
			u, err := url.Parse(l[1])
			if err != nil {
				t.Errorf("%s: %s: %v", path, l[1], err)
				continue
			}
			if u.Scheme != "" {
				continue // the tests ask nobody else's server
			}
			checked++
			to := path
			if u.Path != "" {
				to = filepath.Join(filepath.Dir(path), filepath.FromSlash(u.Path))
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s leads nowhere", path, l[1])
			} else if u.Fragment != "" && !anchors(all[to])[u.Fragment] {
				t.Errorf("%s: %s: that page has no such heading", path, l[1])
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d links were found", checked)
	}
}

func TestTheIndexNamesEveryPageOnce(t *testing.T) {
	t.Parallel()
	all := pages(t)
	index := filepath.Join(root, "docs", "README.md")
	var indexed []string
	for _, l := range link.FindAllStringSubmatch(all[index], -1) {
		indexed = append(indexed, filepath.Join(root, "docs", l[1]))
	}
	for path := range all {
		if filepath.Dir(path) != filepath.Join(root, "docs") || path == index {
			continue
		}
		if n := len(slices.DeleteFunc(slices.Clone(indexed), func(p string) bool { return p != path })); n != 1 {
			t.Errorf("the index names %s %d times, want once", path, n)
		}
	}
}

func TestTheReadmeIsShort(t *testing.T) {
	t.Parallel()
	if n := len(strings.Fields(pages(t)[filepath.Join(root, "README.md")])); n > 1500 {
		t.Errorf("the README has %d words, want at most 1500", n)
	}
}

// The two commands are written in one way everywhere.
func TestCommandsAreWrittenInOneWay(t *testing.T) {
	t.Parallel()
	const tests = "go -C integration test -timeout 30m -p 4 . github.com/pglock-dev/pglock/..."
	const demo = "go run ./cmd/pglock-admin demo"
	for path, text := range pages(t) {
		for i, line := range strings.Split(text, "\n") {
			rest := strings.ReplaceAll(line, tests, "")
			if strings.Contains(rest, "go test ./...") || strings.Contains(rest, "integration test ./...") ||
				strings.Contains(rest, "github.com/pglock-dev/pglock/...") ||
				strings.Contains(rest, "cd integration && go test") {
				t.Errorf("%s:%d: the tests are run in another way than %q: %s", path, i+1, tests, line)
			}
			if strings.Contains(line, "pglock-admin demo") && !strings.Contains(line, demo) {
				t.Errorf("%s:%d: the demo is run in another way than %q: %s", path, i+1, demo, line)
			}
		}
	}
}
