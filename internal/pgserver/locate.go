package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

// Variable is the environment variable that forces one Kind of server.
const Variable = "PGLOCK_SERVER"

// Kind says where a server comes from.
type Kind string

// The kinds, which are also the values of Variable.
const (
	KindURL      Kind = "url"      // a connection string: somebody else's server
	KindPrograms Kind = "programs" // installed programs
	KindDownload Kind = "download" // downloaded programs
	KindDocker   Kind = "docker"   // a container; known to the tests in integration only
)

// ForcedKind reads Variable. It gives "" when the variable is unset or empty, and an error when its value is none of
// allowed.
func ForcedKind(allowed ...Kind) (Kind, error) {
	kind := Kind(os.Getenv(Variable))
	if kind == "" || slices.Contains(allowed, kind) {
		return kind, nil
	}
	return "", fmt.Errorf("%s: %q must be one of %q (docker is for the tests in integration only)", Variable, string(kind), allowed)
}

// A Search says where Locate may find a server.
type Search struct {
	// ConnString names a server that somebody else runs. Defaults to none.
	ConnString string

	// Progress takes a line before programs are downloaded. Defaults to nowhere.
	Progress io.Writer
}

// Locate gives the server that ConnString names, if it names one; else it starts one from installed programs; else from
// downloaded ones. Variable allows only one of the three. Whatever is found is used: Locate does not go on when that server
// cannot be reached or does not start. The caller owns the server and ends it with Stop.
func Locate(ctx context.Context, s Search) (*Server, error) {
	forced, err := ForcedKind(KindURL, KindPrograms, KindDownload)
	if err != nil {
		return nil, err
	}
	if forced == KindURL && s.ConnString == "" {
		return nil, fmt.Errorf("%s: %q needs a connection string, and none was given", Variable, string(forced))
	}
	if s.ConnString != "" && (forced == "" || forced == KindURL) {
		return Connect(ctx, s.ConnString)
	}
	programs, kind, err := LocatePrograms(ctx, forced, s.Progress)
	if err != nil {
		return nil, err
	}
	return Start(ctx, Options{Programs: programs, Kind: kind})
}

// LocatePrograms gives installed programs, else downloaded ones; only the one or the other when forced says so. It tells
// which.
func LocatePrograms(ctx context.Context, forced Kind, progress io.Writer) (programs pgprograms.Programs, kind Kind, err error) {
	if runtime.GOOS == "windows" {
		return programs, "", ErrUnsupported
	}
	if forced != KindDownload {
		if programs, err = pgprograms.Find(ctx); err == nil || forced == KindPrograms || ctx.Err() != nil {
			return programs, KindPrograms, err
		}
	}
	if progress == nil {
		progress = io.Discard
	}
	programs, fetchErr := pgprograms.Fetch(ctx, progress)
	if fetchErr != nil {
		return programs, "", errors.Join(err, fetchErr)
	}
	return programs, KindDownload, nil
}
