//go:build unix

package pgdownload

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	embedded "github.com/fergusstrange/embedded-postgres"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

// archive holds bin/initdb, bin/pg_ctl and bin/postgres, which only say that
// they are of version 17.5.
//
//go:embed testdata/programs.txz
var archive []byte

// repository serves the archive the way the real one does, and counts.
func repository(tb testing.TB, archive []byte) (url string, downloads *atomic.Int32) {
	tb.Helper()
	var jar bytes.Buffer
	w := zip.NewWriter(&jar)
	f, err := w.Create("postgres.txz")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := f.Write(archive); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
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

// cache is a folder that the server's user can look into.
func cache(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/tmp", "pgdownload-test-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(dir, "pglock")
}

func TestProgramsAreDownloadedOnceAndKeptAndNothingElseIs(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	url, downloads := repository(t, archive)
	f := fetcher{dir: cache(t), version: embedded.V17, repository: url}
	var progress strings.Builder
	first, err := f.fetch(t.Context(), &progress)
	if err != nil {
		t.Fatal(err)
	}
	if first.Version != "17.5" || !strings.HasPrefix(first.BinDir, f.dir) {
		t.Errorf("fetched %+v", first)
	}
	if line := progress.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, f.dir) || !strings.Contains(line, "PostgreSQL 17") {
		t.Errorf("progress %q", line)
	}
	progress.Reset()
	second, err := f.fetch(t.Context(), &progress)
	if err != nil {
		t.Fatal(err)
	}
	if second != first || progress.Len() != 0 || downloads.Load() != 1 {
		t.Errorf("fetched %+v again after %d downloads, saying %q", second, downloads.Load(), progress.String())
	}
	left, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFetchesAtTheSameTimeDownloadOnce(t *testing.T) {
	url, downloads := repository(t, archive)
	f := fetcher{dir: cache(t), version: embedded.V17, repository: url}
	var fetches sync.WaitGroup
	for range 8 {
		fetches.Go(func() {
			if _, err := f.fetch(t.Context(), io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	fetches.Wait()
	if n := downloads.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
}

func TestClosedUmaskDoesNotKeepTheServersUserOut(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	url, _ := repository(t, archive)
	f := fetcher{dir: cache(t), version: embedded.V17, repository: url}
	if _, err := f.fetch(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
}

func TestLeftoversOfAnInterruptedFetchAreReplaced(t *testing.T) {
	url, _ := repository(t, archive)
	f := fetcher{dir: cache(t), version: embedded.V17, repository: url}
	leftover := filepath.Join(f.dir, unpackPrefix+"1")
	broken := filepath.Join(f.home(), "bin")
	for _, dir := range []string{leftover, broken} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.fetch(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(leftover); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the leftover: %v", err)
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
		t.Run(name, func(t *testing.T) {
			f := fetcher{dir: cache(t), version: embedded.V17, repository: c.url}
			_, err := f.fetch(t.Context(), io.Discard)
			failed, ok := errors.AsType[*Error](err)
			if !ok || failed.Dir != f.dir || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "PostgreSQL 17") {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
			entries, err := os.ReadDir(f.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() != "lock" {
					t.Errorf("left behind: %s", e.Name())
				}
			}
		})
	}
}

func TestEndedContextEndsTheWaitForADownload(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	f := fetcher{dir: cache(t), version: embedded.V17, repository: server.URL}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := f.fetch(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	close(answer)
	// The download in the background ends when it is answered.
	unlock, err := f.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestRootKeepsProgramsWhereTheServersUserCanReachThem(t *testing.T) {
	user, err := pgprograms.Account()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if home, err := os.UserHomeDir(); user != nil && err == nil && strings.HasPrefix(dir, home+"/") {
		t.Errorf("%s is in the home of root", dir)
	}
}
