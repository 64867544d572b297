package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// promised are the names of tests that show a promise or a trap: TestI1_…, TestI4_A5_…, TestTrap9_…
var promised = regexp.MustCompile(`^(Test|Fuzz|Example)(I|Trap|Hole)\d*_`)

// report says how many tests were skipped wherever they were run, with each reason, and fails if one of them has the
// name of a promise. A test counts with its subtests' names, so a part that was skipped is told too.
func report(in io.Reader, out io.Writer) error {
	shown, skipped := map[place]bool{}, map[place]string{}
	for lines := json.NewDecoder(in); ; {
		var v verdict
		if err := lines.Decode(&v); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		switch at := (place{v.Package, v.Test}); v.Action {
		case "pass":
			shown[at] = true
		case "skip":
			skipped[at] = v.Why
		}
	}
	because := map[string][]string{}
	var lacking []string
	for at, why := range skipped {
		if shown[at] {
			continue
		}
		because[why] = append(because[why], at.test)
		if promised.MatchString(at.test) {
			lacking = append(lacking, fmt.Sprintf("%s (%s)", at.test, why))
		}
	}
	fmt.Fprintf(out, "%d tests and parts of tests passed, %d were skipped wherever they were run\n", len(shown),
		total(because))
	for _, why := range slices.Sorted(maps.Keys(because)) {
		slices.Sort(because[why])
		fmt.Fprintf(out, "%5d  %s: %s\n", len(because[why]), why, strings.Join(because[why], ", "))
	}
	if len(lacking) != 0 {
		slices.Sort(lacking)
		return fmt.Errorf("nothing has shown these promises: %s", strings.Join(lacking, "; "))
	}
	return nil
}

func total(m map[string][]string) (n int) {
	for _, names := range m {
		n += len(names)
	}
	return n
}
