//go:build unix

package pgserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestAServersFolderIsMadeWhereThatCanBeDone(t *testing.T) {
	full := filepath.Join(t.TempDir(), "full") // a file, where nobody can make a folder, root included
	must.Do(t, os.WriteFile(full, nil, 0o600))
	base := t.TempDir()
	folder, err := makeFolder(full, base)
	if err != nil || filepath.Dir(folder) != base {
		t.Errorf("made %q, %v; want it in %s", folder, err, base)
	}
	if folder, err = makeFolder(full); err == nil {
		t.Errorf("made %q", folder)
	}
}

func TestEnvironmentMeantForOthersDoesNotMatter(t *testing.T) {
	t.Setenv("PGPORT", "1")
	t.Setenv("PGDATA", "/nonexistent")
	t.Setenv("PGOPTIONS", "-c no_such_setting=1")
	t.Setenv("PGSERVICE", "none")
	t.Setenv("PGLOCK_SERVER_TEST", "kept")
	t.Setenv("LC_ALL", "nonsense")
	// The folder of a test belongs to this process's user alone, so root must not choose it.
	t.Setenv("TMPDIR", t.TempDir())
	s := started(t, nil)
	if os.Geteuid() == 0 && strings.HasPrefix(s.DataDir(), os.TempDir()) {
		t.Errorf("the data is in %s", s.DataDir())
	}
	must.Do(t, UnsetPG())
	if value, is := os.LookupEnv("PGLOCK_SERVER_TEST"); !is || value != "kept" {
		t.Errorf("our own variable is %q", value)
	}
	ask[int](t, connected(t, s), "select 1")
}
