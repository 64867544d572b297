//go:build unix

package pgdownload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	embedded "github.com/fergusstrange/embedded-postgres"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

// Fetch gives the programs that an earlier call kept, or downloads them, which
// it announces on progress. They are kept in the folder pglock of the user's
// cache, or in /var/cache/pglock when this process is root, because the server
// runs as another user then. Processes that fetch at the same time wait for
// the first of them. The error of a download that failed is an *Error.
//
// When ctx ends, Fetch returns at once, but a download that is under way goes
// on in the background for as long as the process lives.
func Fetch(ctx context.Context, progress io.Writer) (pgprograms.Programs, error) {
	dir, err := cacheDir()
	if err != nil {
		return pgprograms.Programs{}, err
	}
	return fetcher{dir: dir, version: embedded.V17}.fetch(ctx, progress)
}

func cacheDir() (string, error) {
	user, err := pgprograms.Account()
	if err != nil {
		return "", err
	}
	if user != nil {
		return "/var/cache/pglock", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("pgdownload: no folder for the programs: %w", err)
	}
	return filepath.Join(dir, "pglock"), nil
}

type fetcher struct {
	dir        string // everything is kept in here
	version    embedded.PostgresVersion
	repository string // where to download from; empty for the usual place
}

type result struct {
	programs pgprograms.Programs
	err      error
}

func (f fetcher) fetch(ctx context.Context, progress io.Writer) (pgprograms.Programs, error) {
	if programs, err := f.kept(ctx); err == nil {
		return programs, nil
	}
	unlock, err := f.lock(ctx)
	if err != nil {
		return pgprograms.Programs{}, f.failed(err)
	}
	// Somebody else may have fetched while this process waited.
	if programs, err := f.kept(ctx); err == nil {
		unlock()
		return programs, nil
	}
	fmt.Fprintf(progress, "downloading PostgreSQL %s (once, kept in %s) …\n", f.version, f.dir)
	done := make(chan result, 1)
	go func() {
		defer unlock()
		programs, err := f.download(context.WithoutCancel(ctx))
		done <- result{programs, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return pgprograms.Programs{}, f.failed(r.err)
		}
		return r.programs, nil
	case <-ctx.Done():
		return pgprograms.Programs{}, f.failed(context.Cause(ctx))
	}
}

func (f fetcher) failed(err error) error {
	return &Error{Version: string(f.version), Dir: f.dir, Err: err}
}

// home is where the programs end up, whole: they get there by a rename.
func (f fetcher) home() string {
	return filepath.Join(f.dir, fmt.Sprintf("postgresql-%s-%s-%s", f.version, runtime.GOOS, runtime.GOARCH))
}

func (f fetcher) kept(ctx context.Context) (pgprograms.Programs, error) {
	return pgprograms.FindIn(ctx, filepath.Join(f.home(), "bin"))
}

// unpackPrefix begins the names of folders that only the holder of the lock
// makes.
const unpackPrefix = "unpack-"

// download must be called with the lock held.
func (f fetcher) download(ctx context.Context) (_ pgprograms.Programs, err error) {
	if err := f.removeLeftovers(); err != nil {
		return pgprograms.Programs{}, err
	}
	temp, err := os.MkdirTemp(f.dir, unpackPrefix)
	if err != nil {
		return pgprograms.Programs{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	unpacked := filepath.Join(temp, "programs")
	if err := f.unpack(temp, unpacked); err != nil {
		// An archive that cannot be unpacked must not be taken for a good one
		// the next time.
		return pgprograms.Programs{}, errors.Join(err, f.removeArchives())
	}
	if err := openToAll(temp); err != nil {
		return pgprograms.Programs{}, err
	}
	if _, err := pgprograms.FindIn(ctx, filepath.Join(unpacked, "bin")); err != nil {
		return pgprograms.Programs{}, err
	}
	if err := os.RemoveAll(f.home()); err != nil {
		return pgprograms.Programs{}, err
	}
	if err := os.Rename(unpacked, f.home()); err != nil {
		return pgprograms.Programs{}, err
	}
	return f.kept(ctx)
}

// unpack downloads the archive, unless it is in f.dir, and unpacks it into
// dir. Embedded-postgres does both as the first part of starting a server; it
// gets no further, because a data folder below a file cannot be made. Its own
// servers would not run as root, and outlive a process that is killed.
func (f fetcher) unpack(temp, dir string) error {
	file := filepath.Join(temp, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	config := embedded.DefaultConfig().
		Version(f.version).
		Port(0). // only looked at, to see whether it is free
		CachePath(f.dir).
		BinariesPath(dir).
		RuntimePath(filepath.Join(temp, "runtime")).
		DataPath(filepath.Join(file, "data")).
		Locale("C.UTF-8").
		Logger(io.Discard)
	if f.repository != "" {
		config = config.BinaryRepositoryURL(f.repository)
	}
	before := embeddedLogs()
	server := embedded.NewDatabase(config)
	startErr := server.Start()
	for _, log := range embeddedLogs() {
		if !slices.Contains(before, log) {
			_ = os.Remove(log) // empty, and its name is told nowhere
		}
	}
	if startErr == nil {
		return server.Stop()
	}
	if _, err := os.Stat(filepath.Join(dir, "bin")); err != nil {
		return startErr
	}
	return nil
}

// embeddedLogs are the files that embedded-postgres makes and leaves.
func embeddedLogs() []string {
	// The only error is that of a bad pattern.
	logs, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	return logs
}

// removeLeftovers removes what interrupted processes left.
func (f fetcher) removeLeftovers() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unpackPrefix) {
			if err := os.RemoveAll(filepath.Join(f.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f fetcher) removeArchives() error {
	archives, err := filepath.Glob(filepath.Join(f.dir, fmt.Sprintf("*-%s.txz", f.version)))
	for _, archive := range archives {
		err = errors.Join(err, os.Remove(archive))
	}
	return err
}

// openToAll lets every user read what this process's umask may have closed.
func openToAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if info.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
