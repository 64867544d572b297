package pgprograms

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A place is a folder to look into, or only a note for the error message where
// there is none.
type place struct{ dir, note string }

// onPath gives the folders that PATH leads to. A program there may be a link
// into the folder that holds all of them, so both are looked into.
func onPath(ctx context.Context) []place {
	var places []place
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == "" {
			continue
		}
		for _, name := range []string{"pg_ctl", "postgres", "initdb"} {
			file, err := filepath.EvalSymlinks(filepath.Join(dir, name+exeSuffix()))
			if err != nil {
				continue
			}
			places = append(places, place{dir: filepath.Dir(file)}, place{dir: dir})
			break
		}
	}
	if len(places) == 0 {
		places = append(places, place{note: "PATH (none of the programs)"})
	}
	return append(places, fromConfig(ctx))
}

// fromConfig asks pg_config, which Debian installs without server programs
// too: the folder it names is looked into like any other.
func fromConfig(ctx context.Context) place {
	file, err := exec.LookPath("pg_config")
	if err != nil {
		return place{note: "pg_config --bindir (no pg_config on PATH)"}
	}
	out, err := runAs(ctx, nil, file, "--bindir")
	dir := strings.TrimSpace(out)
	if err != nil || dir == "" {
		return place{note: "pg_config --bindir (gave no folder)"}
	}
	return place{dir: dir}
}

// patterns are where packages put the programs, one pattern per packager.
var patterns = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

func wellKnown() []place {
	var places []place
	for _, pattern := range patterns {
		// The patterns are constants, so the only error of Glob cannot occur.
		dirs, _ := filepath.Glob(pattern)
		if len(dirs) == 0 {
			places = append(places, place{note: pattern + " (nothing there)"})
			continue
		}
		newestFirst(dirs)
		for _, dir := range dirs {
			places = append(places, place{dir: dir})
		}
	}
	return places
}

var majorInPath = regexp.MustCompile(`[0-9]+`)

// newestFirst sorts folders by the major in their names; names without one
// come last.
func newestFirst(dirs []string) {
	major := func(dir string) int {
		n, err := strconv.Atoi(majorInPath.FindString(filepath.Base(filepath.Dir(dir))))
		if err != nil {
			return -1
		}
		return n
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return cmp.Compare(major(b), major(a)) })
}
