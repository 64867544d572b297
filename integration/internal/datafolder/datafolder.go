// Package datafolder fills the data folder of a server that does not run, as a backup does.
package datafolder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
)

// Folder is the data folder of a server that does not run.
type Folder struct {
	Path  string
	Owner *pgprograms.User
}

// What a backup leaves out: the contents of these folders, and these files. The lock file of the folder's own last
// server stays: with it the next one finds the shared memory to clean up.
var (
	folders = []string{"pg_wal", "pg_dynshmem", "pg_notify", "pg_replslot", "pg_serial", "pg_snapshots", "pg_stat_tmp",
		"pg_subtrans"}
	files = []string{"postmaster.pid", "postmaster.opts", "standby.signal", "backup_label", "backup_label.old"}
)

// Clear removes everything but the lock file of the last server.
func (d Folder) Clear() error {
	entries, err := os.ReadDir(d.Path)
	for _, e := range entries {
		if e.Name() != "postmaster.pid" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(d.Path, e.Name())))
		}
	}
	return err
}

// CopyFrom copies the data of a running server, between the start and the stop of a backup, without some more files. A
// file that disappears meanwhile is not missed: its end is in the WAL.
func (d Folder) CopyFrom(source string, without ...string) error {
	return filepath.WalkDir(source, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		rel, relErr := filepath.Rel(source, path)
		if err := errors.Join(err, relErr); err != nil || rel == "." {
			return err
		}
		if slices.Contains(folders, filepath.Dir(rel)) || slices.Contains(files, rel) || slices.Contains(without, rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		to := filepath.Join(d.Path, rel)
		if e.IsDir() {
			return errors.Join(os.Mkdir(to, 0o700), d.Owner.Own(to))
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.Join(err, os.WriteFile(to, content, 0o600), d.Owner.Own(to))
	})
}

// Append adds to a file, or makes it; of two lines for one setting the last counts.
func (d Folder) Append(name, content string) error {
	path := filepath.Join(d.Path, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close(), d.Owner.Own(path))
}
