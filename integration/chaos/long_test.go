//go:build unix && long

package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// chaos runs the laboratory and fails the test with what it has found.
func chaos(t *testing.T, o options, faults string) {
	t.Helper()
	o.programs = pgtest.Programs(t)
	var err error
	if o.faults, err = selectFaults(faults, faultsOf(o.clusterName)); err != nil {
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
	if o.oneRound && len(result.idle) > 0 {
		t.Errorf("these faults never took effect: %q", result.idle)
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
	folder := t.TempDir()
	chaos(t, options{seed: 1, duration: 3 * time.Second, workers: 3, goroutines: 3, pace: 60 * time.Millisecond,
		stormCalls: 50, sessionTTL: 600 * time.Millisecond, report: folder, sampleEvery: 200 * time.Millisecond},
		"kill,reset,close,terminate,drop-commit-answer,break,prune,cancel")
	report := must.Get(os.ReadFile(filepath.Join(folder, "report.md")))(t)
	for _, name := range []string{"live heap", "memory", "goroutines", "connections", "table locks, of each row",
		"indexes of waiters", "table receipts, of each row", "indexes of events, of each row"} {
		figure := regexp.MustCompile(`(?m)^\| ` + name + ` \| [1-9]\S* ?\S* \| [1-9]\S* ?\S* \| .* \| too few samples \|$`)
		if !figure.Match(report) {
			t.Errorf("the report has no figures of %s", name)
		}
	}
	for _, kind := range []string{tried, acquired, wrote} {
		if !regexp.MustCompile(`(?m)^\| ` + kind + ` \| [1-9]`).Match(report) {
			t.Errorf("the report has no times of %q", kind)
		}
	}
	if t.Failed() {
		t.Logf("%s", report)
	}
}

// The same with those that need more, a full server, guards, strangers, many leases, many clients, extensions, until
// each has taken effect.
func TestCrowdsAndStrangersTakeEffect(t *testing.T) {
	t.Parallel() // it has servers of its own
	chaos(t, options{seed: 1, oneRound: true, duration: 4 * time.Minute, workers: 3, goroutines: 3,
		pace: 60 * time.Millisecond, stormCalls: 50, crowd: 300, throng: 20, sessionTTL: 600 * time.Millisecond},
		"kill,reset,close,terminate,drop-commit-answer,break,prune,cancel,"+
			"kill-extended,pause-extended,refuse-extended,full,tamper,open-queued,open-running,open-ended,open-lifted,"+
			"crowd,throng")
}

// Whatever somebody does to a guard, everybody who looks for it finds it, and guard_table repairs it. What does nothing
// to a guard is found by nobody, which the laboratory calls a violation.
func TestEveryTamperingIsNamedAndRepaired(t *testing.T) {
	t.Parallel() // it has a server of its own
	var found []string
	l := &lab{injected: &history.Faults{}}
	l.judge = check.New(l.injected, func(v check.Violation) { found = append(found, v.What) }, func(string) {})
	var out output
	var err error
	if l.evidence, err = openEvidence(&out, func(bool) {}, false); err != nil {
		t.Fatal(err)
	}
	defer l.evidence.close()
	nobody := func(history.Commit) {}
	if l.cluster, err = cluster.Start(t.Context(), pgtest.Programs(t), nobody, func(err error) {
		t.Error(err)
	}); err != nil {
		t.Fatal(err)
	}
	defer l.cluster.Stop()
	if l.eye, err = openEye(t.Context(), l.cluster, l.judge); err != nil {
		t.Fatal(err)
	}
	defer l.eye.close()
	h := &hit{lab: l, ctx: t.Context()}
	for _, g := range guarded {
		for _, w := range tamperings {
			found = nil
			if err := h.tamper(g, w, 0); err != nil || len(found) > 0 {
				t.Errorf("%s of %s: %v, %q", w.does, g.table, err, found)
			}
		}
		found = nil
		if err := h.tamper(g, tampering{does: "SELECT FROM %s"}, 0); err != nil || len(found) != 3 {
			t.Errorf("%s was not tampered with: %v, %q; want three violations", g.table, err, found)
		}
	}
}

// What is left of a worker when every call has returned is named, and so is a look that fails.
func TestWhatIsLeftIsFound(t *testing.T) {
	t.Parallel() // it has a server of its own
	var found []string
	l := &lab{screen: newScreen(&output{}), crew: []*member{{life: &life{}}}}
	l.judge = check.New(&history.Faults{}, func(v check.Violation) { found = append(found, v.What) }, func(string) {})
	l.cluster = must.Get(cluster.Start(t.Context(), pgtest.Programs(t), func(history.Commit) {}, func(error) {}))(t)
	stop := sync.OnceValue(l.cluster.Stop)
	defer stop()
	l.eye = must.Get(openEye(t.Context(), l.cluster, l.judge))(t)
	defer l.eye.close()
	finds := func(want ...string) {
		t.Helper()
		found = nil
		must.Do(t, l.lookForLeftovers(t.Context(), 0))
		must.Do(t, l.lookForSessions(t.Context()))
		if !slices.EqualFunc(found, want, strings.Contains) {
			t.Errorf("found %q, want %q", found, want)
		}
	}
	finds()
	client := must.Get(pglock.New(t.Context(), l.eye.pool, pglock.WithDefaultHolder(label(0)),
		pglock.WithSessionTTL(time.Minute)))(t)
	must.Get(client.Acquire(t.Context(), "kept", pglock.WithTTL(time.Minute)))(t)
	waiting, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := client.Acquire(waiting, "kept"); ended <- err }()
	pgtest.Eventually(t, "a call that waits", func() bool {
		look := must.Get(l.eye.look(t.Context()))(t)
		return len(look.Tickets) == 1
	})
	finds("1 tickets are left", `1 locks are held 0s after every call has returned, the first of them "kept" by w0.0`,
		"1 sessions still count as alive")
	end()
	<-ended
	must.Do(t, client.Close(t.Context()))
	finds()
	must.Do(t, stop())
	if err := l.lookForLeftovers(t.Context(), 0); err == nil {
		t.Error("nothing could be looked at, and nobody says so")
	}
	if _, err := l.awaitLeftovers(t.Context(), 0, func(cluster.Leftovers) bool { return true }); err == nil {
		t.Error("no table could be read, and nobody says so")
	}
}

// A minute of everything at once.
func TestAMinuteOfChaos(t *testing.T) {
	chaos(t, options{seed: 7, duration: time.Minute, workers: 8, goroutines: 4, pace: 120 * time.Millisecond,
		stormCalls: 2000,
		crowd:      3000, throng: 200, sessionTTL: 2 * time.Second}, "all")
}
