//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		os.Exit(work()) // this process is a worker of a test
	}
	pgtest.Main(m)
}

// output is what a run says.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

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

func TestFlagsAreRefusedWithTheirNameAndRule(t *testing.T) {
	for args, want := range map[string]string{
		"--workers 0":         "--workers 0: must be 1 to 64",
		"--duration -1s":      "--duration -1s: must be positive",
		"--faults pause,rain": `"rain" is no fault`,
		"--storms 3":          "flag provided but not defined: -storms",
		"now":                 `argument "now"`,
	} {
		var out, problems output
		if code := command(context.Background(), strings.Fields(args), &out, &problems); code != exitUsage || !strings.Contains(problems.String(), want) {
			t.Errorf("%s: exit code %d and %q, want %d and %q", args, code, &problems, exitUsage, want)
		}
	}
}

func TestFaultsAreChosenByName(t *testing.T) {
	for names, want := range map[string]string{
		"none":                   "",
		"pause, kill":            "pause kill",
		"all,-pause":             "no pause",
		"pause,kill,pause,-kill": "pause",
	} {
		chosen, err := selectFaults(names)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range chosen {
			got = append(got, f.name)
		}
		if text := strings.Join(got, " "); want == "no pause" && (len(got) != len(allFaults)-1 || strings.Contains(text, "pause")) || want != "no pause" && text != want {
			t.Errorf("%s: %s, want %s", names, text, want)
		}
	}
}

func TestListShowsFaultsAndChecks(t *testing.T) {
	var out output
	if code := command(context.Background(), []string{"--list"}, &out, &out); code != exitKept {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"stop-inside-write", "promote-lossy", "two believers"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the list", want)
		}
	}
}
