//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
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

func TestFlagsAreRefusedWithTheirNameAndRule(t *testing.T) {
	for args, want := range map[string]string{
		"--workers 0":         "--workers 0: must be 1 to 64",
		"--crowd 10001":       "--crowd 10001: must be 1 to 10000",
		"--throng 201":        "--throng 201: must be 1 to 200",
		"--duration -1s":      "--duration -1s: must be positive",
		"--faults pause,rain": `"rain" is no fault`,
		"--cluster tree":      "--cluster tree: must be own, patroni, patroni-async",
		"--storms 3":          "flag provided but not defined: -storms",
		"now":                 `argument "now"`,
	} {
		var out, problems output
		if code := command(context.Background(), strings.Fields(args), &out, &problems); code != exitUsage ||
			!strings.Contains(problems.String(), want) {
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
		chosen := must.Get(selectFaults(names, allFaults))(t)
		var got []string
		for _, f := range chosen {
			got = append(got, f.name)
		}
		if text := strings.Join(got, " "); want == "no pause" &&
			(len(got) != len(allFaults)-1 || slices.Contains(got, "pause")) || want != "no pause" && text != want {
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

// A fault that has found nothing to do is injected, but has not taken effect, and does not end the run.
func TestAFaultThatDoesNothingIsNamed(t *testing.T) {
	t.Parallel()
	var out output
	l := &lab{injected: &history.Faults{}, endurance: newEndurance(), broken: make(chan error, 1)}
	l.judge = check.New(l.injected, func(check.Violation) {}, func(string) {})
	l.evidence = must.Get(openEvidence(&out, func(bool) {}, false))(t)
	defer l.evidence.close()
	l.faults = []fault{
		{name: "cut", lane: useLane, run: func(*hit) error { return nil }},
		{name: "break", lane: useLane, run: func(*hit) error { return errNothing }},
	}
	for _, f := range l.faults {
		l.hit(t.Context(), f, nil)
	}
	idle := l.idle()
	if !slices.Equal(idle, []string{"break"}) || l.injected.Count()["break"] != 1 || len(l.broken) > 0 {
		t.Errorf("%q have done nothing, of %v", idle, l.injected.Count())
	}
	if s := l.summary(); !strings.Contains(s, "these faults never took effect: break\n") {
		t.Error(s)
	}
}
