package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// The page tells scripts what they may rely on, and so does --help.
func TestThePageOfTheCommandLineHasItsExitCodes(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/command-line.md"))(t)
	codes := func(pattern, text string) (found []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found = append(found, m[1])
		}
		return found
	}
	_, below, _ := strings.Cut(string(page), "\n## Exit codes\n")
	got, want := codes(`(?m)^\| (\d+)`, below), codes(`(?m)^ +(\d+)  `, cli.ExitCodesHelp)
	if len(want) < 9 || !slices.Equal(got, want) {
		t.Errorf("docs/command-line.md has exit codes %v, the program %v", got, want)
	}
}

func TestThePageOfTheCommandLineHasItsCommands(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/command-line.md"))(t)
	for _, c := range commands(newRoot(&cli.Options{})) {
		path := strings.Fields(c.CommandPath())[1:]
		if c.HasSubCommands() || len(path) == 0 || path[0] == "help" {
			continue
		}
		whole, last := strings.Join(path, " "), path[len(path)-1]
		if !regexp.MustCompile("(?m)^\\| `" + path[0] + `\b.*\b` + last + `\b|^\| .*` + "`" + whole +
			`\b`).Match(page) {
			t.Errorf("docs/command-line.md does not name the command %s", whole)
		}
	}
}
