package tier

import (
	_ "embed" // for the list
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

//go:embed short.txt
var text string

// List returns the tests that the short tier has, by the folders of their packages, in the order of short.txt. It has
// all tests of a package without a heading there, and none of one with nothing but a heading.
func List() map[string][]string {
	list, folder := make(map[string][]string), ""
	for line := range strings.Lines(text) {
		name := strings.TrimSpace(line)
		switch {
		case name == "" || name[0] == '#':
		case line[0] != '\t':
			folder, list[name] = name, nil
		default:
			list[folder] = append(list[folder], name)
		}
	}
	return list
}

// Choose makes this run of a package's tests one of the short tier, if it is to be, and returns what it says of that. A
// command line that names tests has what it names, and one with the tag whole or long every test.
func Choose() string {
	if !flag.Parsed() {
		flag.Parse()
	}
	info, known := debug.ReadBuildInfo()
	if EveryTest || !known {
		return ""
	}
	return choose(flag.CommandLine, info.Path)
}

// Given says whether the command line has one of these flags.
func Given(flags *flag.FlagSet, names ...string) (given bool) {
	flags.Visit(func(f *flag.Flag) {
		for _, name := range names {
			given = given || f.Name == name
		}
	})
	return given
}

const module = "github.com/pglock-dev/pglock/"

// choose does what Choose does for a test program of this path: that of its package, and .test unless it is a command.
func choose(flags *flag.FlagSet, path string) string {
	names, has := List()[strings.TrimSuffix(strings.TrimPrefix(path, module), ".test")]
	if !has || Given(flags, "test.run", "test.list") {
		return ""
	}
	run := "^(" + strings.Join(append(slices.Clone(names), "Example.*", "Fuzz.*"), "|") + ")$"
	if err := flags.Set("test.run", run); err != nil {
		panic(err) // no test program
	}
	return fmt.Sprintf("the short tier has %d of these tests, -tags whole all", len(names))
}
