package model

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

const root = "../../.."

func read(t *testing.T, paths ...string) string {
	t.Helper()
	var all strings.Builder
	for _, path := range paths {
		text := must.Get(os.ReadFile(path))(t)
		all.Write(text)
	}
	return all.String()
}

func page(t *testing.T) string {
	t.Helper()
	return read(t, filepath.Join(root, "docs", "model.md"))
}

// section is the part of the page under a heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(page(t), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/model.md has no heading %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

func TestThePageSaysWhatEachStepStandsFor(t *testing.T) {
	var first, second strings.Builder // columns
	for line := range strings.Lines(section(t, "Steps")) {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			first.WriteString(cells[1] + "\n")
			second.WriteString(cells[2] + "\n")
		}
	}
	for k := range kinds {
		if !strings.Contains(first.String(), k.String()) {
			t.Errorf("no row says what step %q stands for", k)
		}
	}
	schema := must.Get(filepath.Glob(filepath.Join(root, "migrations", "schema", "*.sql")))(t)
	library := must.Get(filepath.Glob(filepath.Join(root, "pglock", "*.go")))(t)
	code := read(t, append(schema, library...)...)
	names := regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(second.String(), -1)
	if len(names) < 20 {
		t.Errorf("the rows name only %d functions", len(names))
	}
	for _, n := range names {
		is := regexp.MustCompile(`(?m)^CREATE (FUNCTION|TABLE) ` + n[1] + `\b|^func (\(.*\) )?` + n[1] + `\(|^  ` + n[1] + ` `)
		if !is.MatchString(code) {
			t.Errorf("the schema and the library have no %s", n[1])
		}
	}
}

func TestThePageHasEveryMistake(t *testing.T) {
	promises := make(map[string]string) // by the row of the page
	invariants := map[string]string{Exclusion: "I1", Ascending: "I2", FenceHeld: "I3",
		InTime: "I4", InTurn: "I9", Stuck: "I8"}
	text := section(t, "Mistakes")
	for line := range strings.Lines(text) {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			promises[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[2])
		}
	}
	for _, m := range mistakes {
		if got, _, _ := strings.Cut(promises[string(m.Mistake)], ","); got != invariants[m.breaks] {
			t.Errorf("mistake %q breaks %q, and the page says %q", m.Mistake, invariants[m.breaks], got)
		}
	}
	if len(promises) != len(mistakes)+2 {
		t.Errorf("the page has %d mistakes, and the test %d", len(promises)-2, len(mistakes))
	}
	takeover := New(two, NoLockInside)
	story := takeover.Story(Explore(takeover, most).Trace)
	if !strings.Contains(text, indent(story)) {
		t.Errorf("the page does not tell the takeover as the model does:\n%s", indent(story))
	}
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}

// checkStates compares the number of states with that on the page.
func checkStates(t *testing.T, tier string, states int) {
	t.Helper()
	digits := strconv.Itoa(states)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if row := "| " + tier + " | " + digits + " |"; !strings.Contains(section(t, "Figures"), row) {
		t.Errorf("the page has no row that begins with %q", row)
	}
}
