package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestMigrationIsWhatTheFilesOfTheSchemaSay(t *testing.T) {
	folder := filepath.Join("..", "..", "..", "migrations")
	up, down, err := generate(folder)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{name + ".up.sql": up, name + ".down.sql": down} {
		got := must.Get(os.ReadFile(filepath.Join(folder, file)))(t)
		if string(got) != want {
			t.Errorf("%s is not what migrations/schema say: go generate ./migrations", file)
		}
	}
}

// Whoever reads a function at night sees all of it, in a terminal of 120 columns.
func TestEachFunctionFitsAScreen(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "migrations", "schema", "*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	functions := 0
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(t)
		began, name := 0, ""
		for n, line := range strings.Split(string(text), "\n") {
			if w := utf8.RuneCountInString(line); w > 120 {
				t.Errorf("%s:%d has %d columns, want at most 120", file, n+1, w)
			}
			if strings.HasPrefix(line, "CREATE FUNCTION ") {
				began, name = n, line
				functions++
			}
			if name != "" && strings.HasSuffix(line, "$$;") {
				if n-began+1 > 60 {
					t.Errorf("%s:%d: %s has %d lines, want at most 60", file, began+1, name, n-began+1)
				}
				name = ""
			}
		}
	}
	if functions < 50 {
		t.Errorf("%d functions: this test has looked in the wrong place", functions)
	}
}
