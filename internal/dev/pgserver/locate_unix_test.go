//go:build unix

package pgserver

import (
	"io"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestConnectionStringComesFirst(t *testing.T) {
	programs, kind, err := LocatePrograms(t.Context(), "", io.Discard)
	if err != nil {
		t.Fatalf("this test needs server programs on this machine: %v", err)
	}
	t.Setenv(Variable, string(kind))
	ours := must.Get(Locate(t.Context(), "", io.Discard))(t)
	defer func() {
		must.Note(t, ours.Stop())
	}()
	if ours.Kind() != kind || !strings.Contains(ours.Description(), programs.BinDir) {
		t.Errorf("forced to %s: found %s server %s", kind, ours.Kind(), ours.Description())
	}
	for _, value := range []string{"", "url"} {
		t.Setenv(Variable, value)
		theirs := must.Get(Locate(t.Context(), ours.URL(), io.Discard))(t)
		if theirs.Kind() != KindURL || theirs.URL() != ours.URL() || !strings.Contains(theirs.Description(),
			"127.0.0.1") {
			t.Errorf("%s=%q: found %s server %s", Variable, value, theirs.Kind(), theirs.Description())
		}
	}
}
