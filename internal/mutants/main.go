// Command mutants breaks the code on purpose, one known fault at a time, and shows which test notices. Every
// invariant and every trap of the design has at least one. Nothing in the tree is changed: the go command reads the
// broken files through an overlay.
//
//	go run ./internal/mutants          all of them
//	go run ./internal/mutants I4 I17   those whose name contains one of the words
//
// It exits with 1 if a mutant survives.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// mutant is one fault: replacements of texts in files, and the test that must then fail.
type mutant struct {
	name  string
	edits []edit
	pkg   string
	test  string // a regular expression for -run
}

// edit replaces a text that occurs exactly once in a file. In SQL, line breaks do not matter.
type edit struct{ file, old, broken string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, words []string) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	root := strings.TrimSpace(string(out))
	var alive, unfit []string
	for _, m := range all {
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m.name, w) }) {
			continue
		}
		began := time.Now()
		failed, err := m.run(ctx, root)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		verdict := "killed by " + failed
		switch {
		case err != nil:
			verdict = "COULD NOT BE TRIED: " + err.Error()
			unfit = append(unfit, m.name)
		case failed == "":
			verdict = "SURVIVES " + m.test
			alive = append(alive, m.name)
		}
		fmt.Printf("%-78s %s (%.1fs)\n", m.name, verdict, time.Since(began).Seconds())
	}
	if len(alive)+len(unfit) > 0 {
		return fmt.Errorf("%d survive: %s; %d could not be tried: %s", len(alive), strings.Join(alive, "; "), len(unfit), strings.Join(unfit, "; "))
	}
	return nil
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// run tests the broken code and returns the first test that failed, or "" if all passed. A failed build, or a test
// that does not exist, is an error: it would kill nothing.
func (m mutant) run(ctx context.Context, root string) (string, error) {
	dir, err := os.MkdirTemp("", "pglock-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder in the temporary folder
	texts, err := m.apply(root)
	if err != nil {
		return "", err
	}
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for path, text := range texts {
		broken := filepath.Join(dir, fmt.Sprint(len(overlay.Replace), filepath.Ext(path)))
		if err := os.WriteFile(broken, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[path] = broken
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, data, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", overlayFile, "-count=1", "-timeout=100s", "-v", "-run", m.test, ".")
	cmd.Dir = filepath.Join(root, m.pkg) // which may be in another module
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		return "", err
	case !bytes.Contains(output.Bytes(), []byte("=== RUN")):
		return "", fmt.Errorf("no test ran:\n%s", output.Bytes())
	case err == nil:
		return "", nil
	}
	if found := failedTest.FindSubmatch(output.Bytes()); found != nil {
		return string(found[1]), nil
	}
	return "a panic or a timeout", nil
}

// apply returns the broken texts of the files, by path. Each edit must fit in exactly one place.
func (m mutant) apply(root string) (map[string]string, error) {
	texts := make(map[string]string)
	for _, e := range m.edits {
		path := filepath.Join(root, e.file)
		text, seen := texts[path]
		if !seen {
			read, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			text = string(read)
		}
		places := regexp.MustCompile(e.pattern()).FindAllStringIndex(text, -1)
		if len(places) != 1 {
			return nil, fmt.Errorf("%s has the text %d times, want once: %s", e.file, len(places), e.old)
		}
		texts[path] = text[:places[0][0]] + e.broken + text[places[0][1]:]
	}
	return texts, nil
}

func (e edit) pattern() string {
	if filepath.Ext(e.file) != ".sql" {
		return regexp.QuoteMeta(e.old)
	}
	words := strings.Fields(e.old)
	for i, w := range words {
		words[i] = regexp.QuoteMeta(w)
	}
	return strings.Join(words, `\s+`)
}
