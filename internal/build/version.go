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
	most    = 64 // bytes
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
	if version == "" || len(version) > most {
		return unknown
	}
	return version
}
