// Package pgprograms finds or downloads PostgreSQL server programs, and knows the user that may run them.
package pgprograms

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
)

// MinMajor is the oldest PostgreSQL major that is accepted.
const MinMajor = 14

// ErrNotFound says that there are no programs.
var ErrNotFound = errors.New("no usable PostgreSQL server programs")

// Programs is a folder with the server programs of one PostgreSQL version.
type Programs struct {
	BinDir  string // absolute
	Version string // as the programs report it, such as "15.18"
	Major   int    // at least MinMajor
}

// Path is the file of the named program.
func (p Programs) Path(name string) string { return filepath.Join(p.BinDir, name) }

// needed are the programs that a usable folder holds.
var needed = []string{"initdb", "postgres"}

// patterns are where Debian, Red Hat, Homebrew and Postgres.app put the programs.
var patterns = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// Find looks for installed programs: in the folders of PATH, then where packages put them, the newest major first. It
// takes the first folder whose programs are of MinMajor or newer and can be run by Account. Its error is ErrNotFound,
// with every place and why it was refused, or ctx's error.
func Find(ctx context.Context) (Programs, error) {
	return first(ctx, append(onPath(), packaged()...))
}

// FindIn is Find in one folder only.
func FindIn(ctx context.Context, dir string) (Programs, error) { return first(ctx, []string{dir}) }

// onPath returns the folders of PATH that have one of the programs. That may be a link into the folder with all of
// them, so the link's target comes first.
func onPath() (dirs []string) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		for _, name := range append(needed, "pg_ctl") {
			if file, err := filepath.EvalSymlinks(filepath.Join(dir, name)); err == nil {
				dirs = append(dirs, filepath.Dir(file), dir)
			}
		}
	}
	return dirs
}

func packaged() (dirs []string) {
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // its only error is that of a bad pattern
		dirs = append(dirs, found...)
	}
	number := regexp.MustCompile(`[0-9]+`)
	major := func(dir string) int {
		n, _ := strconv.Atoi(number.FindString(filepath.Base(filepath.Dir(dir)))) // 0 where there is none
		return n
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return major(b) - major(a) })
	return dirs
}

func first(ctx context.Context, dirs []string) (Programs, error) {
	account, err := Account()
	if err != nil {
		return Programs{}, err
	}
	var refused []string
	for _, dir := range slices.Compact(dirs) {
		programs, err := inspect(ctx, dir, account)
		if err == nil {
			return programs, nil
		}
		if ctx.Err() != nil {
			return Programs{}, context.Cause(ctx)
		}
		refused = append(refused, fmt.Sprintf("%s (%v)", dir, err))
	}
	if len(dirs) == 0 {
		refused = append([]string{"PATH"}, patterns...)
	}
	return Programs{}, fmt.Errorf("%w (%s, %d or newer); looked in: %s",
		ErrNotFound, strings.Join(needed, " and "), MinMajor, strings.Join(refused, "; "))
}

// askTimeout limits a program that is only asked for its version.
const askTimeout = 10 * time.Second

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (([0-9]+)[^ \n]*)`)

// inspect runs the programs as account, which also shows that account can.
func inspect(ctx context.Context, dir string, account *User) (p Programs, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if p.BinDir, err = filepath.Abs(dir); err != nil {
		return p, err
	}
	for _, name := range needed {
		if _, err := os.Stat(p.Path(name)); err != nil {
			return p, fmt.Errorf("no %s", name)
		}
		out, err := askVersion(ctx, p.Path(name), account)
		if err != nil {
			return p, fmt.Errorf("%s cannot be run by the server's user: %w", name, err)
		}
		m := versionLine.FindSubmatch(out)
		if m == nil {
			return p, fmt.Errorf("%s does not report its version", name)
		}
		p.Version = string(m[1])
		if p.Major, err = strconv.Atoi(string(m[2])); err != nil || p.Major < MinMajor {
			return p, fmt.Errorf("version %s is older than %d", p.Version, MinMajor)
		}
	}
	return p, nil
}

// askVersion runs a program that has perhaps just been written. For as long as another process that this one has
// started still has the file open for writing, because it has not come to its own program yet, that cannot be run.
func askVersion(ctx context.Context, program string, account *User) ([]byte, error) {
	for {
		cmd := exec.CommandContext(ctx, program, "--version")
		cmd.Dir = "/" // account may not be able to read this process's working directory
		cmd.WaitDelay = time.Second
		account.RunAs(cmd)
		out, err := cmd.Output()
		if !errors.Is(err, syscall.ETXTBSY) || !pause.Exactly(ctx, 10*time.Millisecond) {
			return out, err
		}
	}
}
