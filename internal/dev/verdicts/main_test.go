package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

const events = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestI1_A"}
{"Action":"output","Package":"p","Test":"TestI1_A","Output":"=== RUN   TestI1_A\n"}
{"Action":"output","Package":"p","Test":"TestI1_A","Output":"    a_test.go:7: there is no PgBouncer\n"}
{"Action":"output","Package":"p","Test":"TestI1_A","Output":"--- SKIP: TestI1_A (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestI1_A"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: a log line\n"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`

func TestWhatPassesIsALineForThePackage(t *testing.T) {
	t.Parallel()
	var out, kept strings.Builder
	if err := follow(strings.NewReader(events), &out, &kept); err != nil || out.String() != "ok  \tp\t0.1s\n" {
		t.Errorf("%v, it prints %q", err, out.String())
	}
}

func TestWhatFailsSaysAllThatItSaidAndAtTheEndOnceMore(t *testing.T) {
	t.Parallel()
	const failing = `{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:1: wrong\n"}
{"Action":"output","Package":"p","Test":"TestHangs","Output":"panic: too late\n"}
{"Action":"output","Package":"p","Test":"TestNotBegun","Output":"=== PAUSE TestNotBegun\n"}
{"Action":"fail","Package":"p","Test":"TestC"}
# not of go test
{"Action":"fail","Package":"p"}
`
	var out, kept strings.Builder
	err := follow(strings.NewReader(events+failing), &out, &kept)
	const c, hangs = "=== p TestC\n    c_test.go:1: wrong\n", "=== p TestHangs\npanic: too late\n"
	if err == nil || !strings.Contains(out.String(), "# not of go test") ||
		strings.Contains(out.String(), "a log line") {
		t.Errorf("%v, it prints %q", err, out.String())
	}
	if !strings.HasSuffix(out.String(), "== what failed, once more:\n"+c+hangs) || strings.Count(out.String(), c) != 2 {
		t.Errorf("it prints %q", out.String())
	}
}

func TestOfALongPanicTheEndHasTheBeginning(t *testing.T) {
	t.Parallel()
	var out, kept strings.Builder
	const says = `{"Action":"output","Package":"p","Test":"TestC","Output":`
	events := says + `"panic: wrong\n"}` + "\n" + strings.Repeat(says+`"goroutine\n"}`+"\n", 100) +
		`{"Action":"fail","Package":"p"}`
	err := follow(strings.NewReader(events), &out, &kept)
	_, end, _ := strings.Cut(out.String(), "once more:\n")
	if err == nil || !strings.HasPrefix(end, "=== p TestC\npanic: wrong\n") ||
		strings.Count(end, "\n") != 41 || !strings.HasSuffix(end, "… and 62 lines more, above\n") {
		t.Errorf("%v, at the end it prints %q", err, end)
	}
}

func TestAPromiseThatWasSkippedWhereverItWasRunFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "verdicts")
	tell := func(events string) (string, error) {
		t.Helper()
		var out strings.Builder
		must.Do(t, run(file, "", strings.NewReader(events), &out))
		out.Reset()
		err := run("", file, nil, &out)
		return out.String(), err
	}
	out, err := tell(events)
	if err == nil || !strings.Contains(err.Error(), "TestI1_A (there is no PgBouncer)") ||
		!strings.Contains(out, "1 tests and parts of tests passed, 1 were skipped") ||
		!strings.Contains(out, "there is no PgBouncer: TestI1_A") {
		t.Errorf("%v, it says %q", err, out)
	}
	// elsewhere
	if out, err = tell(strings.ReplaceAll(events, `"skip"`, `"pass"`)); err != nil ||
		!strings.Contains(out, "0 were skipped") {
		t.Errorf("%v, it says %q", err, out)
	}
	other := strings.ReplaceAll(events, "TestI1_A", "TestOther")
	if out, err = tell(other); err != nil || !strings.Contains(out, "1 were skipped") { // of no promise
		t.Errorf("%v, it says %q", err, out)
	}
}
