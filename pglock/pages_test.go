package pglock_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// Every function that the page about the architecture names is in the file that the page names before it.
func TestThePageAboutTheArchitectureNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../docs/architecture.md"))(t)
	isFile := regexp.MustCompile(`\.(go|sql)$`)
	inSchema := regexp.MustCompile(`^\d\d_`)
	checked := 0
	for _, line := range strings.Split(string(page), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 4 { // a row has two cells: what is done, and where
			continue
		}
		var file, text, folder string
		for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1) {
			name := code[1]
			if !isFile.MatchString(name) && strings.Contains(name, "/") {
				continue // a folder
			}
			if !isFile.MatchString(name) {
				if text != "" && !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|CREATE FUNCTION )`+name+
					`\b`).MatchString(text) {
					t.Errorf("%s has no function %s: %s", file, name, line)
				}
				checked++
				continue
			}
			switch i := strings.LastIndex(name, "/"); {
			case inSchema.MatchString(name):
				name = "migrations/schema/" + name
			case i < 0:
				name = folder + name
			default:
				folder = name[:i+1]
			}
			source, err := os.ReadFile("../" + name)
			if err != nil {
				t.Errorf("%v: %s", err, line)
			}
			file, text = name, string(source)
		}
	}
	if checked < 50 {
		t.Errorf("%d functions were found on the page: it is not read as it is written", checked)
	}
}
