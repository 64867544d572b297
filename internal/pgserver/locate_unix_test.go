//go:build unix

package pgserver

import (
	"strings"
	"testing"
)

func TestLocateTakesTheConnectionStringBeforePrograms(t *testing.T) {
	t.Setenv(Variable, "")
	s := started(t, Options{})
	found, err := Locate(t.Context(), Search{ConnString: s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	if found.Kind() != KindURL || found.URL() != s.URL() || !strings.Contains(found.Description(), "127.0.0.1") {
		t.Errorf("found %s server %s", found.Kind(), found.Description())
	}
}

func TestLocateStartsAServerWhenForcedToDespiteAConnectionString(t *testing.T) {
	p, kind, err := LocatePrograms(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(Variable, string(kind))
	found, err := Locate(t.Context(), Search{ConnString: "postgres://nobody@127.0.0.1:1/postgres"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := found.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if found.Kind() != kind || !strings.Contains(found.Description(), p.BinDir) {
		t.Errorf("found %s server %s", found.Kind(), found.Description())
	}
}
