package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A mutant whose text is no longer in the code would break nothing, and would seem to survive.
func TestEveryMutantFitsTheCode(t *testing.T) {
	for _, m := range all {
		if _, err := m.apply("../.."); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

func TestEveryMutantHasANameOfItsOwn(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range all {
		if seen[m.name] {
			t.Errorf("there are two of the name %q", m.name)
		}
		seen[m.name] = true
	}
}

// A test that has got another name would kill nothing.
func TestEveryMutantNamesTestsThatAreThere(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	tests := make(map[string][]string)
	for _, m := range all {
		if tests[m.pkg] != nil {
			continue
		}
		files, err := filepath.Glob(filepath.Join("../..", m.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range declared.FindAllSubmatch(text, -1) {
				tests[m.pkg] = append(tests[m.pkg], string(found[1]))
			}
		}
	}
	for _, m := range all {
		for _, one := range strings.Split(m.test, "|") {
			if !slices.ContainsFunc(tests[m.pkg], regexp.MustCompile(one).MatchString) {
				t.Errorf("%s: %s has no test %s", m.name, m.pkg, one)
			}
		}
	}
}
