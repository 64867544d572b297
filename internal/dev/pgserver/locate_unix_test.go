//go:build unix

package pgserver

import (
	"io"
	"strings"
	"testing"
)

func TestConnectionStringComesFirst(t *testing.T) {
	whole(t)
	programs, kind, err := LocatePrograms(t.Context(), "", io.Discard)
	if err != nil {
		t.Fatalf("this test needs server programs on this machine: %v", err)
	}
	t.Setenv(Variable, string(kind))
	ours, err := Locate(t.Context(), "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ours.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if ours.Kind() != kind || !strings.Contains(ours.Description(), programs.BinDir) {
		t.Errorf("forced to %s: found %s server %s", kind, ours.Kind(), ours.Description())
	}
	for _, value := range []string{"", "url"} {
		t.Setenv(Variable, value)
		theirs, err := Locate(t.Context(), ours.URL(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if theirs.Kind() != KindURL || theirs.URL() != ours.URL() || !strings.Contains(theirs.Description(),
			"127.0.0.1") {
			t.Errorf("%s=%q: found %s server %s", Variable, value, theirs.Kind(), theirs.Description())
		}
	}
}
