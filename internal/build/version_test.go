package build

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionIsThatOfThisModuleWhateverTheProgram(t *testing.T) {
	t.Parallel()
	dep := func(path, version string, replace *debug.Module) []*debug.Module {
		return []*debug.Module{{Path: "example.org/other", Version: "v9.9.9"},
			{Path: path, Version: version, Replace: replace}}
	}
	for name, tc := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"our own command": {debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3"}}, "v1.2.3"},
		"an application": {debug.BuildInfo{Main: debug.Module{Path: "example.org/app", Version: "v7.0.0"},
			Deps: dep(module, "v1.4.0", nil)}, "v1.4.0"},
		"a fork": {debug.BuildInfo{Deps: dep(module, "v1.4.0", &debug.Module{Path: "example.org/fork",
			Version: "v1.4.1"})}, "v1.4.1"},
		"a folder": {debug.BuildInfo{Deps: dep(module, "v1.4.0", &debug.Module{Path: "../pglock"})},
			"(devel)"},
		"tests from elsewhere": {debug.BuildInfo{Main: debug.Module{Path: module, Version: none}}, "(devel)"},
		"nothing":              {debug.BuildInfo{}, "(devel)"},
		"an application's alone": {debug.BuildInfo{Main: debug.Module{Path: "example.org/app", Version: "v7.0.0"}},
			"(devel)"},
		"what nobody would write": {debug.BuildInfo{Deps: dep(module, strings.Repeat("v", most+1), nil)}, "(devel)"},
	} {
		if got := versionIn(&tc.info); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if Version() == "" {
		t.Error("this test has an empty version")
	}
}
