//go:build unix

package pgserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

// A folder holds everything of one server; removing it leaves nothing behind.
type folder string

func (f folder) data() string     { return filepath.Join(string(f), "data") }
func (f folder) log() string      { return filepath.Join(string(f), "log") }
func (f folder) password() string { return filepath.Join(string(f), "password") }
func (f folder) pidFile() string  { return filepath.Join(f.data(), "postmaster.pid") }

// makeFolder makes the server's folder below base, or below the first usable
// of the usual places when base is empty. Only user can look into it.
func makeFolder(base string, user *pgprograms.User) (folder, error) {
	if base != "" {
		return makeFolderIn(base, user)
	}
	var tried []string
	var errs []error
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if slices.Contains(tried, base) {
			continue
		}
		tried = append(tried, base)
		f, err := makeFolderIn(base, user)
		if err == nil {
			return f, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("pgserver: no place for the server's folder: %w", errors.Join(errs...))
}

func makeFolderIn(base string, user *pgprograms.User) (folder, error) {
	base, err := filepath.Abs(base)
	if err != nil {
		return "", err
	}
	// Backends see the real name of their folder, so the minder must too.
	base, err = filepath.EvalSymlinks(base)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(base, "pglock-server-")
	if err != nil {
		return "", err
	}
	if err := errors.Join(user.Own(dir), reach(dir, user)); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return folder(dir), nil
}

// reach finds out whether user can get to dir, through all the folders above
// it, by doing it: modes alone do not tell where there are access lists.
func reach(dir string, user *pgprograms.User) error {
	if user == nil {
		return nil
	}
	cmd := exec.Command("/bin/sh", "-c", `cd "$1" && test -w .`, "reach", dir)
	cmd.Dir = "/"
	user.RunAs(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: user %s cannot reach it: %w %s", dir, user.Name, err, bytes.TrimSpace(out))
	}
	return nil
}
