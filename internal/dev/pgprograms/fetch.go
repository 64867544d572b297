package pgprograms

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// Cache is the folder for what is kept between runs: pglock in the user's cache, or in /var/cache if this process is
// root, because the server then runs as another user.
func Cache() (string, error) {
	if account, err := Account(); err != nil || account != nil {
		return "/var/cache/pglock", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for what is kept between runs: %w", err)
	}
	return filepath.Join(cache, "pglock"), nil
}

// MakeCache makes the folder that Cache named, so that the server's user can enter it whatever the umask.
func MakeCache(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// Fetch returns the programs that an earlier call kept in Cache, or downloads them, which it announces on progress. A
// failed download is ErrNotFound.
//
// When ctx ends, Fetch returns within seconds, and leaves no files. A download under way continues for as long as the
// process lives, and is then thrown away.
func Fetch(ctx context.Context, progress io.Writer) (Programs, error) {
	cache, err := Cache()
	if err != nil {
		return Programs{}, err
	}
	return fetcher{dir: cache, version: embedded.V17}.fetch(ctx, progress)
}

type fetcher struct {
	dir        string // everything is kept in here
	version    embedded.PostgresVersion
	repository string // where to download from; empty for the usual place
}

// home is the programs' final folder. They get there by a rename. Of two processes that fetch at the same time the
// later one finds the folder and uses it.
func (f fetcher) home() string {
	return filepath.Join(f.dir, fmt.Sprintf("postgresql-%s-%s-%s%s", f.version, runtime.GOOS, runtime.GOARCH,
		library("/etc/alpine-release")))
}

// library tells programs apart that need another C library: those for Alpine, which has the file.
func library(release string) string {
	if _, err := os.Stat(release); err != nil {
		return ""
	}
	return "-musl"
}

func (f fetcher) fetch(ctx context.Context, progress io.Writer) (Programs, error) {
	kept := filepath.Join(f.home(), "bin")
	if programs, err := FindIn(ctx, kept); err == nil {
		return programs, nil
	}
	fmt.Fprintf(progress, "downloading PostgreSQL %s (once, kept in %s) …\n", f.version, f.dir)
	if err := f.download(ctx); err != nil {
		return Programs{}, fmt.Errorf("%w: download of PostgreSQL %s into %s: %w", ErrNotFound, f.version, f.dir, err)
	}
	return FindIn(ctx, kept)
}

func (f fetcher) download(ctx context.Context) (err error) {
	if err := MakeCache(f.dir); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(f.dir, "unpack-")
	if err != nil {
		return err
	}
	removeLogs := newLogs()
	remove := func() error {
		removeLogs()
		return os.RemoveAll(temp)
	}
	programs, done := filepath.Join(temp, "programs"), make(chan error, 1)
	go func() { done <- f.unpack(temp, programs) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		defer func() {
			go func() { // if the process lives on
				<-done
				_ = remove()
			}()
		}()
		return errors.Join(context.Cause(ctx), removeForGood(temp, done, remove))
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	// The umask may have hidden what the server's user has to read.
	if out, err := exec.Command("chmod", "-R", "a+rX", programs).CombinedOutput(); err != nil {
		return fmt.Errorf("make the programs readable for all: %w %s", err, out)
	}
	return f.move(ctx, programs, filepath.Join(temp, "broken"))
}

// move gives the programs their home. What is there and works stays; what does not work goes to aside.
func (f fetcher) move(ctx context.Context, programs, aside string) error {
	if err := os.Rename(programs, f.home()); err == nil {
		return nil
	}
	if _, err := FindIn(ctx, filepath.Join(f.home(), "bin")); err == nil {
		return nil // of another process
	}
	if err := os.Rename(f.home(), aside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Rename(programs, f.home())
}

// removeForGood removes temp again and again, for two seconds at most, while somebody unpacks there who makes the
// folders anew. Whoever unpacks fails soon, because a file that was written is gone.
func removeForGood(temp string, done chan error, remove func() error) error {
	for range 40 {
		unpacking, _ := os.ReadDir(temp)
		if err := remove(); err != nil && len(unpacking) == 0 {
			return err
		}
		select {
		case err := <-done:
			done <- err
			return remove()
		case <-time.After(50 * time.Millisecond):
		}
		if len(unpacking) < 2 && !isFolder(temp) { // it still downloads: there is one file at most
			return nil
		}
	}
	return remove()
}

// newLogs returns what removes the logs that embedded-postgres makes from now on. It does not say where they are.
func newLogs() (remove func()) {
	logs := filepath.Join(os.TempDir(), "embedded_postgres_log*")
	before, _ := filepath.Glob(logs)
	return func() {
		after, _ := filepath.Glob(logs)
		for _, log := range after {
			if !slices.Contains(before, log) {
				_ = os.Remove(log)
			}
		}
	}
}

// unpack downloads the programs and unpacks them into dir. Embedded-postgres does both as the first part of starting
// a server. It gets no further, because it cannot make a data folder below a file. Its own servers would not run as
// root, and would outlive a killed process.
func (f fetcher) unpack(temp, dir string) (err error) {
	defer func() {
		if p := recover(); p != nil { // it panics where its files have gone
			err = fmt.Errorf("unpack: %v", p)
		}
	}()
	file, next := filepath.Join(temp, "file"), filepath.Join(temp, "next")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	config := embedded.DefaultConfig().
		Version(f.version).
		Port(0). // only checked: is it free?
		CachePath(temp).
		BinariesPath(dir).
		RuntimePath(next).
		DataPath(filepath.Join(file, "data")).
		Locale("C.UTF-8").
		Logger(io.Discard)
	if f.repository != "" {
		config = config.BinaryRepositoryURL(f.repository)
	}
	err = embedded.NewDatabase(config).Start()
	if isFolder(next) { // made when all was unpacked
		return nil
	}
	return err
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
