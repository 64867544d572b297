//go:build unix

package pgserver

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
)

// cacheOfATest is a folder that the server's user can enter; that of a test belongs to this process's user alone.
func cacheOfATest(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp(cmp.Or(memory(), "/tmp"), "pglock-cache-"))(t)
	t.Cleanup(func() {
		must.Note(t, os.RemoveAll(dir))
	})
	must.Do(t, os.Chmod(dir, 0o755))
	return filepath.Join(dir, "made by the first")
}

// identified starts a server with the cache, and returns what initdb has given its data folder.
func identified(t *testing.T, cache string) (s *Server, identifier int64) {
	t.Helper()
	s = must.Get(start(t.Context(), Options{Programs: installed(t), InMemory: true}, cache))(t)
	t.Cleanup(func() {
		must.Note(t, s.Stop())
	})
	return s, ask[int64](t, connected(t, s), "select system_identifier from pg_control_system()")
}

func TestServersAreCopiesOfAKeptFolderAndAreApart(t *testing.T) {
	t.Parallel()
	cache := cacheOfATest(t)
	a, first := identified(t, cache)
	kept := filepath.Join(cache, a.edition())
	for path, want := range map[string]os.FileMode{kept: 0o700, filepath.Join(kept, "password"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; only its user must be able to read it", path, info, err)
		}
	}
	b, second := identified(t, cache)
	if first != second {
		t.Error("the second server is no copy of the first one's data folder")
	}
	for name, s := range map[string]*Server{"a": a, "b": b} {
		must.Get(connected(t, s).Exec(t.Context(), "create table only_"+name+" ()"))(t)
		if n := ask[int](t, connected(t, s), "select count(*) from pg_tables where tablename like 'only%'"); n != 1 {
			t.Errorf("%d tables, want one", n)
		}
	}
	left, err := os.ReadDir(cache)
	if err != nil || len(left) != 1 {
		t.Errorf("the cache has %v, %v; want the kept folder alone", left, err)
	}
	if err := os.RemoveAll(filepath.Join(kept, "data")); err != nil { // somebody is about to remove it all
		t.Fatal(err)
	}
	if _, third := identified(t, cache); third == first {
		t.Error("a kept folder that was removed is still copied")
	}
}

func TestWhoeverKeepsAFolderRemovesThoseThatNobodyCopies(t *testing.T) {
	t.Parallel()
	cache := cacheOfATest(t)
	s, _ := identified(t, cache)
	kept := filepath.Join(cache, s.edition())
	long := time.Now().Add(-unused - time.Hour)
	for _, name := range []string{"data-14.0-gone", "initdb-half", "unpack-half", "unpack-now", "data-14.1-used",
		"another"} {
		must.Do(t, os.Mkdir(filepath.Join(cache, name), 0o700))
	}
	for _, name := range []string{"data-14.0-gone", "initdb-half", "unpack-half", "another", s.edition()} {
		must.Do(t, os.Chtimes(filepath.Join(cache, name), time.Time{}, long))
	}
	identified(t, cache)
	if info, err := os.Stat(kept); err != nil || time.Since(info.ModTime()) > time.Hour {
		t.Errorf("%v, %v: a folder that was copied counts as unused", info, err)
	}
	must.Do(t, os.RemoveAll(kept))
	identified(t, cache) // keeps another
	var left []string
	entries, err := os.ReadDir(cache)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{"another", "data-14.1-used", "unpack-now", s.edition()}
	slices.Sort(want)
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("the cache has %v, %v; want %v", left, err, want)
	}
}

func TestAServerStartsWhereNothingCanBeKept(t *testing.T) {
	t.Parallel()
	file := cacheOfATest(t)
	must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.Do(t, os.WriteFile(file, nil, 0o600))
	identified(t, file)
}

func TestAKeptFolderBelongsToTheProgramsThatMadeIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := &process{programs: pgprograms.Programs{BinDir: dir, Version: "15.1"}}
	seen := make(map[string]bool)
	for _, change := range []func() error{
		func() error { return os.WriteFile(filepath.Join(dir, "initdb"), []byte("a"), 0o600) },
		func() error { return os.WriteFile(filepath.Join(dir, "postgres"), []byte("a"), 0o600) },
		func() error { return os.WriteFile(filepath.Join(dir, "postgres"), []byte("ab"), 0o600) },
		func() error { return os.Chtimes(filepath.Join(dir, "postgres"), time.Time{}, time.Unix(1, 0)) },
		func() error { p.programs.Version = "15.2"; return nil },
		func() error { p.user = &pgprograms.User{Name: "nobody"}; return nil },
	} {
		must.Do(t, change())
		if name := p.edition(); seen[name] {
			t.Errorf("two editions are named %s", name)
		}
		seen[p.edition()] = true
	}
}
