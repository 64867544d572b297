package pgserver

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Variable is the environment variable that forces one Kind of server.
const Variable = "PGLOCK_SERVER"

// Kind says where a server comes from.
type Kind string

// The kinds, which are also the values of Variable.
const (
	KindURL      Kind = "url"      // a connection string: somebody else's server
	KindPrograms Kind = "programs" // installed programs
	KindDocker   Kind = "docker"   // a container; known to tests only
	KindDownload Kind = "download" // downloaded programs
)

// ForcedKind reads Variable. It gives "" when the variable is unset or empty,
// and an error when its value is none of allowed.
func ForcedKind(allowed ...Kind) (Kind, error) {
	kind := Kind(os.Getenv(Variable))
	if kind == "" || slices.Contains(allowed, kind) {
		return kind, nil
	}
	names := make([]string, len(allowed))
	for i, k := range allowed {
		names[i] = string(k)
	}
	note := ""
	if kind == KindDocker {
		note = " (docker is for the tests only)"
	}
	return "", fmt.Errorf("%s: %q must be one of %s%s", Variable, string(kind), strings.Join(names, ", "), note)
}
