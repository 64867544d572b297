package pgtest

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/pglock-dev/pglock/internal/pgprograms"
	"github.com/pglock-dev/pglock/internal/pgserver"
)

// Dedicated starts a server that belongs to this one test, which may kill and restart it, with the settings added to those
// of a throwaway server. It is stopped when the test ends.
//
// That takes programs on this machine, installed or downloaded. Where the shared server is a container or somebody else's,
// and there are none, the test is skipped, with the reason on standard output; where there is no server at all it fails.
func Dedicated(tb testing.TB, settings map[string]string) *pgserver.Server {
	tb.Helper()
	own := ownServers(tb)
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, pgserver.Options{Template: own.template, Kind: own.kind, Settings: settings})
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

// Programs gives the server programs of this machine to a test that runs servers by itself. It is skipped or fails where
// Dedicated would.
func Programs(tb testing.TB) pgprograms.Programs {
	tb.Helper()
	return ownServers(tb).programs
}

func ownServers(tb testing.TB) own {
	tb.Helper()
	shared.prepareOwn.Do(shared.own.prepare)
	own := shared.own
	if own.err != nil {
		if err := shared.get(); err != nil {
			tb.Fatal(err)
		}
		reason := fmt.Sprintf("pgtest: %s needs server programs on this machine, to kill and restart a server of its own: %v", tb.Name(), own.err)
		fmt.Fprintln(os.Stdout, reason)
		tb.Skip(reason)
	}
	return own
}

// own is what the servers of tests' own are made of.
type own struct {
	kind     pgserver.Kind
	programs pgprograms.Programs
	template *pgserver.Template
	err      error
}

// prepare finds programs and makes the data folder that servers get copies of. A shared server that was asked for by name,
// or a container, does not keep installed programs from being used, but it spares the download.
func (o *own) prepare() {
	forced, err := pgserver.ForcedKind(pgserver.KindURL, pgserver.KindPrograms, pgserver.KindDocker, pgserver.KindDownload)
	if err != nil {
		o.err = err
		return
	}
	if forced == pgserver.KindURL || forced == pgserver.KindDocker {
		forced = pgserver.KindPrograms
	}
	ctx, cancel := context.WithTimeout(shared.ctx, startTimeout)
	defer cancel()
	if o.programs, o.kind, o.err = pgserver.LocatePrograms(ctx, forced, stdout); o.err == nil {
		o.template, o.err = pgserver.NewTemplate(ctx, o.programs)
	}
}
