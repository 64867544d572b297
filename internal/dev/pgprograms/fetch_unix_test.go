//go:build unix

package pgprograms

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// archive holds bin/initdb, bin/pg_ctl and bin/postgres, which only say that they are of version 17.5.
//
//go:embed testdata/programs.txz
var archive []byte

// many holds 2,000 empty folders, so that it takes a while to unpack.
//
//go:embed testdata/many.txz
var many []byte

// repository serves the archive the way the real one does, and counts.
func repository(tb testing.TB, archive []byte) (url string, downloads *atomic.Int32) {
	tb.Helper()
	var jar bytes.Buffer
	w := zip.NewWriter(&jar)
	f := must.Get(w.Create("postgres.txz"))(tb)
	must.Get(f.Write(archive))(tb)
	must.Do(tb, w.Close())
	sum := sha256.Sum256(jar.Bytes())
	downloads = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = io.WriteString(w, hex.EncodeToString(sum[:]))
			return
		}
		downloads.Add(1)
		_, _ = w.Write(jar.Bytes())
	}))
	tb.Cleanup(server.Close)
	return server.URL, downloads
}

func fetching(tb testing.TB, repository string) fetcher {
	tb.Helper()
	return fetcher{dir: filepath.Join(folder(tb), "pglock"), version: embedded.V17, repository: repository}
}

func entries(tb testing.TB, dir string) (names []string) {
	tb.Helper()
	found := must.Get(os.ReadDir(dir))(tb)
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

func TestProgramsAreDownloadedOnceAndKeptAndNothingElseIs(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	url, downloads := repository(t, archive)
	f := fetching(t, url)
	var progress strings.Builder
	first := must.Get(f.fetch(t.Context(), &progress))(t)
	if first.Version != "17.5" || !strings.HasPrefix(first.BinDir, f.dir) {
		t.Errorf("fetched %+v", first)
	}
	if line := progress.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, f.dir) ||
		!strings.Contains(line, "PostgreSQL 17") {
		t.Errorf("progress %q", line)
	}
	progress.Reset()
	second := must.Get(f.fetch(t.Context(), &progress))(t)
	if second != first || progress.Len() != 0 || downloads.Load() != 1 {
		t.Errorf("fetched %+v again after %d downloads, saying %q", second, downloads.Load(), progress.String())
	}
	if left := entries(t, temp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if kept := entries(t, f.dir); len(kept) != 1 {
		t.Errorf("kept: %v", kept)
	}
}

func TestFetchesAtTheSameTimeAllHavePrograms(t *testing.T) {
	url, _ := repository(t, archive)
	f := fetching(t, url)
	var fetches sync.WaitGroup
	for range 8 {
		fetches.Go(func() {
			if _, err := f.fetch(t.Context(), io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	fetches.Wait()
	if kept := entries(t, f.dir); len(kept) != 1 {
		t.Errorf("kept: %v", kept)
	}
}

func TestClosedUmaskDoesNotKeepTheServersUserOut(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	url, _ := repository(t, archive)
	f := fetching(t, url)
	if _, err := f.fetch(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
	files := 0
	if err := filepath.WalkDir(f.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() {
			files++
		}
		if open := fs.FileMode(0o004); err == nil && info.Mode()&open == 0 || e.IsDir() && info.Mode()&0o001 == 0 {
			t.Errorf("%s is %v: others cannot read it", path, info.Mode())
		}
		return err
	}); err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}

func TestFailedDownloadSaysWhatFailedAndLeavesNoPrograms(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	unreachable := gone.URL
	gone.Close()
	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	broken, _ := repository(t, []byte("no archive"))
	for name, c := range map[string]struct{ url, want string }{
		"unreachable": {unreachable, "unable to connect"},
		"missing":     {missing.URL, "no version found"},
		"broken":      {broken, "unable to extract"},
	} {
		f := fetching(t, c.url)
		_, err := f.fetch(t.Context(), io.Discard)
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), f.dir) {
			t.Errorf("%s: error %v, want ErrNotFound that says %q", name, err, c.want)
		}
		if left := entries(t, f.dir); len(left) != 0 {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
}

func TestEndedContextEndsTheWaitForADownloadAndLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	asked, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	defer close(answer)
	f := fetching(t, server.URL)
	if _, err := f.fetch(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if left := append(entries(t, temp), entries(t, f.dir)...); len(left) != 0 { // the process may end now
		t.Errorf("left behind: %v", left)
	}
}

func TestBrokenProgramsThatWereKeptAreReplaced(t *testing.T) {
	url, downloads := repository(t, archive)
	f := fetching(t, url)
	must.Do(t, os.MkdirAll(filepath.Join(f.home(), "bin"), 0o755))
	for range 2 {
		if programs, err := f.fetch(t.Context(), io.Discard); err != nil || programs.Version != "17.5" {
			t.Errorf("fetched %+v, %v", programs, err)
		}
	}
	if n := downloads.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
	if kept := entries(t, f.dir); len(kept) != 1 {
		t.Errorf("kept: %v", kept)
	}
}

// Fetches that find the same broken folder replace it one after the other.
func TestProgramsThatWorkAreNotReplaced(t *testing.T) {
	f := fetching(t, "")
	bin := filepath.Join(f.home(), "bin")
	must.Do(t, os.MkdirAll(bin, 0o755))
	fake(t, bin, "17.5", needed...)
	later := filepath.Join(f.dir, "later")
	must.Do(t, os.MkdirAll(filepath.Join(later, "bin"), 0o755))
	must.Note(t, f.move(t.Context(), later, filepath.Join(f.dir, "aside")))
	if left := entries(t, f.dir); len(left) != 2 {
		t.Errorf("there is %v, want what was there before", left)
	}
	if _, err := FindIn(t.Context(), bin); err != nil {
		t.Error(err)
	}
}

func TestAlpinesProgramsHaveAFolderOfTheirOwn(t *testing.T) {
	release := filepath.Join(t.TempDir(), "alpine-release")
	if name := library(release); name != "" {
		t.Errorf("without the file: %q", name)
	}
	must.Do(t, os.WriteFile(release, nil, 0o600))
	if name := library(release); name == "" {
		t.Error("with the file the name is the same")
	}
}

func TestEndedContextEndsTheUnpackingAndLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	url, _ := repository(t, many)
	f := fetching(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			if begun, _ := filepath.Glob(filepath.Join(f.dir, "unpack-*", "programs")); len(begun) > 0 {
				return
			}
		}
	}()
	if _, err := f.fetch(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	for began := time.Now(); time.Since(began) < 200*time.Millisecond; { // the process may end at any time
		if left := entries(t, f.dir); len(left) != 0 {
			t.Fatalf("left behind: %v", left)
		}
	}
}
