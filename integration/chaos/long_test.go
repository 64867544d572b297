//go:build unix && long

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// chaos runs the laboratory and fails the test with what it has found.
func chaos(t *testing.T, o options, faults string) {
	t.Helper()
	o.programs = pgtest.Programs(t)
	var err error
	if o.faults, err = selectFaults(faults); err != nil {
		t.Fatal(err)
	}
	var out output
	result, err := run(t.Context(), o, newScreen(&out), &out)
	t.Log(out.String())
	if err != nil {
		t.Fatalf("the laboratory failed: %v", err)
	}
	if result.violations > 0 {
		t.Errorf("%d violations; the evidence is in %s", result.violations, result.folder)
	}
	for _, operation := range []string{"acquire", "Write, guarded", "release"} {
		if !strings.Contains(out.String(), operation) {
			t.Errorf("there was no %s", operation)
		}
	}
}

// A few seconds with a few faults that cost little: the laboratory works, and finds nothing.
func TestAFewSecondsOfChaos(t *testing.T) {
	t.Parallel() // it has servers of its own
	chaos(t, options{seed: 1, duration: 3 * time.Second, workers: 3, goroutines: 3, pace: 60 * time.Millisecond, stormCalls: 50, sessionTTL: 600 * time.Millisecond},
		"kill,reset,close,terminate,drop-commit-answer,break,prune,cancel")
}

// A minute of everything at once.
func TestAMinuteOfChaos(t *testing.T) {
	chaos(t, options{seed: 7, duration: time.Minute, workers: 8, goroutines: 4, pace: 120 * time.Millisecond, stormCalls: 2000, sessionTTL: 2 * time.Second}, "all")
}
