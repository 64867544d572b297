//go:build unix

package pgprograms

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// folder makes a folder that every user can look into.
func folder(tb testing.TB) string {
	tb.Helper()
	dir := must.Get(os.MkdirTemp("/tmp", "pgprograms-test-"))(tb)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.Do(tb, os.Chmod(dir, 0o755))
	return dir
}

// fake makes programs that only tell a version.
func fake(tb testing.TB, dir, version string, names ...string) string {
	tb.Helper()
	for _, name := range names {
		script := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + " (Some packager)'\n"
		must.Do(tb, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	return dir
}

func TestProgramsTellVersionAndMajor(t *testing.T) {
	dir := fake(t, folder(t), "17.5", needed...)
	got := must.Get(FindIn(t.Context(), dir))(t)
	if want := (Programs{BinDir: dir, Version: "17.5", Major: 17}); got != want {
		t.Errorf("found %+v, want %+v", got, want)
	}
}

func TestBetaVersionsHaveAMajor(t *testing.T) {
	got, err := FindIn(t.Context(), fake(t, folder(t), "19beta1", needed...))
	if err != nil || got.Major != 19 || got.Version != "19beta1" {
		t.Errorf("found %+v, %v", got, err)
	}
}

func TestUnusableFoldersAreRefusedWithTheReason(t *testing.T) {
	closed := fake(t, folder(t), "17.5", needed...)
	must.Do(t, os.Chmod(filepath.Join(closed, "postgres"), 0o644))
	silent := fake(t, folder(t), "17.5", needed...)
	must.Do(t, os.WriteFile(filepath.Join(silent, "postgres"), []byte("#!/bin/sh\n"), 0o755))
	for dir, want := range map[string]string{
		fake(t, folder(t), "13.21", needed...): "13.21 is older than 14",
		fake(t, folder(t), "17.5", "initdb"):   "no postgres",
		fake(t, folder(t), "17.5", "postgres"): "no initdb",
		filepath.Join(folder(t), "missing"):    "no initdb",
		closed:                                 "cannot be run",
		silent:                                 "does not report its version",
	} {
		_, err := FindIn(t.Context(), dir)
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("error %v, want ErrNotFound that says %q of %s", err, want, dir)
		}
	}
}

func TestProgramsThatTheServersUserCannotRunAreRefused(t *testing.T) {
	user, err := Account()
	if err != nil {
		t.Fatal(err)
	}
	// The folder of a test belongs to this process's user alone.
	dir := fake(t, t.TempDir(), "17.5", needed...)
	_, err = FindIn(t.Context(), dir)
	if user == nil {
		if err != nil {
			t.Errorf("own programs are refused: %v", err)
		}
		return
	}
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "by the server's user") {
		t.Errorf("error %v, want one that says whose programs cannot be run", err)
	}
}

func TestPathIsFollowedThroughLinksAndFirst(t *testing.T) {
	old := fake(t, folder(t), "13.1", needed...)
	home := fake(t, folder(t), "16.2", append(needed, "pg_ctl")...)
	links := folder(t)
	must.Do(t, os.Symlink(filepath.Join(home, "pg_ctl"), filepath.Join(links, "pg_ctl")))
	t.Setenv("PATH", strings.Join([]string{old, folder(t), links, os.Getenv("PATH")}, string(os.PathListSeparator)))
	got := must.Get(Find(t.Context()))(t)
	resolved := must.Get(filepath.EvalSymlinks(home))(t)
	if got.BinDir != resolved {
		t.Errorf("found %s, want %s", got.BinDir, resolved)
	}
}

func TestErrorTellsEveryPlace(t *testing.T) {
	t.Setenv("PATH", folder(t))
	defer func(old []string) { patterns = old }(patterns)
	patterns = []string{"/nonexistent/*/bin"}
	_, err := Find(t.Context())
	if !errors.Is(err, ErrNotFound) {
		t.Fatalf("error %v, want ErrNotFound", err)
	}
	for _, want := range []string{"PATH", "/nonexistent/*/bin", "initdb and postgres", "14"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestNewestMajorComesFirst(t *testing.T) {
	defer func(old []string) { patterns = old }(patterns)
	base := folder(t)
	patterns = []string{base + "/*/bin", base + "/postgresql/*/bin"}
	var want []string
	for _, name := range []string{"postgresql@17", "pgsql-16", "postgresql/14", "9.6", "postgresql"} {
		want = append(want, filepath.Join(base, name, "bin"))
		must.Do(t, os.MkdirAll(want[len(want)-1], 0o755))
	}
	if got := packaged(); !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func TestAnotherUsersTemporaryFilesAreNotInAFolderOfThisProcess(t *testing.T) {
	ours := t.TempDir()
	t.Setenv("TMPDIR", ours)
	var self *User
	if got := self.TempDir(); got != ours {
		t.Errorf("this process has its files in %s, want %s", got, ours)
	}
	if got := (&User{Name: "somebody"}).TempDir(); got == ours {
		t.Errorf("another user has its files in %s", got)
	}
}
