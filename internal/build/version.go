// Package build tells which version of this module a program was built with.
package build

import (
	"runtime/debug"
	"strings"
	"sync"
)

const (
	module  = "github.com/pglock-dev/pglock"
	unknown = "(devel)"
	none    = "v0.0.0-00010101000000-000000000000" // what Go calls a folder where a version must be
	most    = 64                                   // bytes
)

// Version is the version of the module, as in "v1.4.0"; "(devel)" where the build does not tell it.
var Version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	return versionIn(info)
})

func versionIn(info *debug.BuildInfo) string {
	version := ""
	if info.Main.Path == module {
		version = info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path != module {
			continue
		}
		version = dep.Version
		if dep.Replace != nil { // a fork, or a folder without a version
			version = dep.Replace.Version
		}
	}
	version = strings.ToValidUTF8(version, "?")
	if version == "" || version == none || len(version) > most {
		return unknown
	}
	return version
}
