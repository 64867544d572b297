package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/pgprograms"
	"github.com/pglock-dev/pglock/internal/pgserver"
)

// dedicatedTimeout bounds the start of a server of a test's own, with the
// fetching of programs.
const dedicatedTimeout = 3 * time.Minute

// Dedicated starts a server that belongs to this one test, which may kill and
// restart it, with the settings added to those of a throwaway server. It is
// stopped when the test ends.
//
// That takes programs on this machine, installed or downloaded. Where the
// shared server is a container or somebody else's, and there are none, the test
// is skipped, with the reason on standard output; where there is no server at
// all it fails.
func Dedicated(tb testing.TB, settings map[string]string) *pgserver.Server {
	tb.Helper()
	options := serverOptions(tb)
	options.Settings = settings
	ctx, cancel := context.WithTimeout(tb.Context(), dedicatedTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := server.Stop(); err != nil {
			tb.Errorf("pgtest: stop the test's server: %v", err)
		}
	})
	return server
}

// Programs gives the server programs of this machine to a test that runs
// servers by itself. It is skipped or fails where Dedicated would.
func Programs(tb testing.TB) pgprograms.Programs {
	tb.Helper()
	return serverOptions(tb).Programs
}

// serverOptions are the programs for a server of a test's own.
func serverOptions(tb testing.TB) pgserver.Options {
	tb.Helper()
	options, err := localPrograms()
	if err != nil {
		if _, sharedErr := shared.get(); sharedErr != nil {
			tb.Fatal(sharedErr)
		}
		reason := fmt.Sprintf("pgtest: %s needs server programs on this machine, to kill and restart a server of its own: %v", tb.Name(), err)
		fmt.Fprintln(os.Stdout, reason)
		tb.Skip(reason)
	}
	return options
}

// localPrograms looks once per process. A shared server that was asked for by
// name, or a container, does not keep installed programs from being used, but
// it spares the download.
var localPrograms = sync.OnceValues(func() (pgserver.Options, error) {
	forced, err := pgserver.ForcedKind(pgserver.KindURL, pgserver.KindPrograms, pgserver.KindDocker, pgserver.KindDownload)
	if err != nil {
		return pgserver.Options{}, fmt.Errorf("pgtest: %w", err)
	}
	if forced == pgserver.KindURL || forced == pgserver.KindDocker {
		forced = pgserver.KindPrograms
	}
	ctx, cancel := context.WithTimeout(shared.ctx, dedicatedTimeout)
	defer cancel()
	programs, kind, err := pgserver.LocatePrograms(ctx, forced, os.Stdout)
	return pgserver.Options{Programs: programs, Kind: kind}, err
})
