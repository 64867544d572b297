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

// Locate gives the server at connString, unless that is empty; else it starts one from installed programs; else from downloaded
// ones, and progress takes a line before the download. Variable allows only one of the three. Whatever is found is used:
// Locate does not go on when that server cannot be reached or does not start. The caller owns the server and ends it with
// Stop.
func Locate(ctx context.Context, connString string, progress io.Writer) (*Server, error) {
	forced, err := ForcedKind(KindURL, KindPrograms, KindDownload)
	switch {
	case err != nil:
		return nil, err
	case forced == KindURL && connString == "":
		return nil, fmt.Errorf("%s: %q needs a connection string, and none was given", Variable, string(forced))
	case connString != "" && (forced == "" || forced == KindURL):
		return Connect(ctx, connString)
	}
	programs, kind, err := LocatePrograms(ctx, forced, progress)
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
	programs, fetchErr := pgprograms.Fetch(ctx, progress)
	if fetchErr != nil {
		return programs, "", errors.Join(err, fetchErr)
	}
	return programs, KindDownload, nil
}
