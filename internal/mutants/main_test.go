package main

import "testing"

// A mutant whose text the code has lost would break nothing, and seem to be killed by nothing.
func TestEveryMutantFitsTheCode(t *testing.T) {
	for _, m := range all {
		if _, err := m.apply("../.."); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
