package pgserver

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestForcedKindNamesTheVariableTheValueAndTheRule(t *testing.T) {
	for value, wants := range map[string][]string{
		"nonsense": {Variable, `"nonsense"`, `"url" "programs" "download"`},
		"docker":   {Variable, `"docker"`, `"url" "programs" "download"`, "integration only"},
	} {
		t.Setenv(Variable, value)
		_, err := Locate(t.Context(), "", io.Discard)
		if err == nil {
			t.Errorf("%s=%s is taken", Variable, value)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not say %q", err, want)
			}
		}
	}
}

func TestForcedURLNeedsAConnectionString(t *testing.T) {
	t.Setenv(Variable, "url")
	_, err := Locate(t.Context(), "", io.Discard)
	if err == nil || !strings.Contains(err.Error(), "connection string") || !strings.Contains(err.Error(), Variable) {
		t.Errorf("error %v", err)
	}
}

func TestAConnectionStringAndAnotherKindExcludeEachOther(t *testing.T) {
	for _, kind := range []Kind{KindPrograms, KindDownload} {
		t.Setenv(Variable, string(kind))
		_, err := Locate(t.Context(), "postgres://me:hush-hush@127.0.0.1:1/postgres", io.Discard)
		if err == nil || !strings.Contains(err.Error(), Variable) || !strings.Contains(err.Error(), string(kind)) ||
			strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: error %v", kind, err)
		}
	}
}

func TestConnectionStringThatLeadsNowhereIsAnErrorWithoutItsPassword(t *testing.T) {
	t.Setenv(Variable, "")
	for _, connString := range []string{
		"postgres://somebody:hush-hush@127.0.0.1:1/postgres",
		"host=127.0.0.1 port=no password=hush-hush",
	} {
		_, err := Locate(t.Context(), connString, io.Discard)
		if err == nil || strings.Contains(err.Error(), "hush-hush") {
			t.Errorf("error %v", err)
		}
	}
}

func TestServerOfSomebodyElseIsLeftAlone(t *testing.T) {
	s := Known(KindURL, "postgres://somebody@elsewhere/postgres", "elsewhere")
	if err := s.Kill(); !errors.Is(err, ErrNotOurs) {
		t.Errorf("Kill: %v, want ErrNotOurs", err)
	}
	if err := s.Restart(t.Context()); !errors.Is(err, ErrNotOurs) {
		t.Errorf("Restart: %v, want ErrNotOurs", err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if s.PID() != 0 || s.DataDir() != "" || s.LogFile() != "" {
		t.Error("it has a process, a folder or a log")
	}
}
