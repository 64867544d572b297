package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
)

// Variable names the environment variable that forces one Kind of server.
const Variable = "PGLOCK_SERVER"

// Kind says where a server comes from.
type Kind string

// The kinds, which are also the values of Variable.
const (
	KindURL      Kind = "url"      // a connection string: somebody else's server
	KindPrograms Kind = "programs" // installed programs
	KindDownload Kind = "download" // downloaded programs
	KindDocker   Kind = "docker"   // a container; only the tests in integration know it
)

// ForcedKind reads Variable. It returns "" if the variable is unset or empty, and an error if its value is not
// allowed.
func ForcedKind(allowed ...Kind) (Kind, error) {
	kind := Kind(os.Getenv(Variable))
	if kind == "" || slices.Contains(allowed, kind) {
		return kind, nil
	}
	return "", fmt.Errorf("%s: %q must be one of %q (docker is for the tests in integration only)", Variable,
		string(kind), allowed)
}

// Locate returns the server at connString, if that is not empty; else it starts one from installed programs; else
// from downloaded ones, and announces the download to progress. Variable allows only one of the three; beside a
// connection string it must not name another. Locate uses the first that it finds: it fails if that server cannot be
// reached or does not start. The caller owns the server and ends it with Stop.
func Locate(ctx context.Context, connString string, progress io.Writer) (*Server, error) {
	forced, err := ForcedKind(KindURL, KindPrograms, KindDownload)
	switch {
	case err != nil:
		return nil, err
	case forced == KindURL && connString == "":
		return nil, fmt.Errorf("%s: %q needs a connection string, and none was given", Variable, string(forced))
	case connString != "" && forced != "" && forced != KindURL:
		return nil, fmt.Errorf("%s: %q forbids the server of the connection string: unset the variable, or name none",
			Variable, string(forced))
	case connString != "":
		return Connect(ctx, connString)
	}
	programs, kind, err := LocatePrograms(ctx, forced, progress)
	if err != nil {
		return nil, err
	}
	return Start(ctx, Options{Programs: programs, Kind: kind, InMemory: true})
}

// LocatePrograms returns installed programs, else downloaded ones; forced allows only one of the two. It also returns
// which.
func LocatePrograms(ctx context.Context, forced Kind, progress io.Writer) (programs pgprograms.Programs, kind Kind,
	err error) {
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
