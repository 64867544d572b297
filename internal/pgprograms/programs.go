// Package pgprograms finds the PostgreSQL server programs that are installed
// on this machine and the user they may run as.
package pgprograms

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// MinMajor is the oldest PostgreSQL major that is accepted.
const MinMajor = 14

// ErrNotFound is what errors.Is finds in the error of Find and FindIn when
// there are no usable programs.
var ErrNotFound = errors.New("no usable PostgreSQL server programs")

// A NotFoundError tells every folder that was looked into and why each was
// refused. It answers errors.Is for ErrNotFound.
type NotFoundError struct {
	// Looked holds one line per place, in the order of the search.
	Looked []string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%v (initdb, pg_ctl and postgres, %d or newer); looked in: %s",
		ErrNotFound, MinMajor, strings.Join(e.Looked, "; "))
}

// Is makes the error match ErrNotFound.
func (e *NotFoundError) Is(target error) bool { return target == ErrNotFound }

// Programs is a folder with the server programs of one PostgreSQL version.
type Programs struct {
	BinDir  string // absolute, holds initdb, pg_ctl and postgres
	Version string // as the programs tell it, such as "15.18"
	Major   int    // at least MinMajor
}

// Path is the file of the named program.
func (p Programs) Path(name string) string {
	return filepath.Join(p.BinDir, name+exeSuffix())
}

// programNames are the programs that a usable folder holds.
func programNames() []string { return []string{"initdb", "pg_ctl", "postgres"} }

func exeSuffix() string {
	if runtime.GOOS == "windows" {
		return ".exe"
	}
	return ""
}

// Find looks for installed programs: in the folders of PATH, in the one that
// pg_config names, and where Debian, Red Hat, Homebrew and Postgres.app put
// them, the newest major of each first. It takes the first folder whose
// programs are of MinMajor or newer and can be run by Account. Its error is a
// *NotFoundError, or that of ctx.
func Find(ctx context.Context) (Programs, error) {
	return findAmong(ctx, append(onPath(ctx), wellKnown()...))
}

// FindIn looks into one folder only. Its error is a *NotFoundError, or that of
// ctx.
func FindIn(ctx context.Context, dir string) (Programs, error) {
	return findAmong(ctx, []place{{dir: dir}})
}

func findAmong(ctx context.Context, places []place) (Programs, error) {
	notFound := &NotFoundError{}
	account, err := Account()
	if err != nil {
		return Programs{}, err
	}
	seen := make(map[string]bool)
	for _, p := range places {
		if p.dir == "" {
			notFound.Looked = append(notFound.Looked, p.note)
			continue
		}
		dir, err := filepath.Abs(p.dir)
		if err != nil {
			notFound.Looked = append(notFound.Looked, err.Error())
			continue
		}
		if seen[dir] {
			continue
		}
		seen[dir] = true
		programs, err := inspect(ctx, dir, account)
		if err == nil {
			return programs, nil
		}
		if ctx.Err() != nil {
			return Programs{}, context.Cause(ctx)
		}
		notFound.Looked = append(notFound.Looked, err.Error())
	}
	return Programs{}, notFound
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (([0-9]+)[^ \n]*)`)

// inspect runs postgres as account, which also shows that account can.
func inspect(ctx context.Context, dir string, account *User) (Programs, error) {
	p := Programs{BinDir: dir}
	for _, name := range programNames() {
		info, err := os.Stat(p.Path(name))
		switch {
		case err != nil:
			return Programs{}, fmt.Errorf("%s (no %s)", dir, name)
		case info.IsDir():
			return Programs{}, fmt.Errorf("%s (%s is a folder)", dir, name)
		}
	}
	for _, name := range programNames() {
		out, err := runAs(ctx, account, p.Path(name), "--version")
		if err != nil {
			return Programs{}, fmt.Errorf("%s (%s cannot be run%s: %w)", dir, name, account.asUser(), err)
		}
		m := versionLine.FindStringSubmatch(out)
		if m == nil {
			return Programs{}, fmt.Errorf("%s (%s does not tell its version)", dir, name)
		}
		if name != "postgres" {
			continue
		}
		p.Version = m[1]
		if p.Major, err = strconv.Atoi(m[2]); err != nil {
			return Programs{}, fmt.Errorf("%s (version %s: %w)", dir, m[1], err)
		}
	}
	if p.Major < MinMajor {
		return Programs{}, fmt.Errorf("%s (version %s is older than %d)", dir, p.Version, MinMajor)
	}
	return p, nil
}

// askTimeout bounds a program that is only asked for its version or folder.
const askTimeout = 10 * time.Second

// runAs runs a program in the root folder, because the working directory of
// this process may be closed to account.
func runAs(ctx context.Context, account *User, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = filepath.VolumeName(path) + string(filepath.Separator)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	account.RunAs(cmd)
	out, err := cmd.Output()
	return string(out), err
}
