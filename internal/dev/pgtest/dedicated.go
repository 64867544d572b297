package pgtest

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

// Dedicated starts a server for this test alone, which may kill and restart it, with the settings added to those of a
// throwaway server. It is stopped when the test ends.
//
// That takes programs on this machine, installed or downloaded. If there are none, and the shared server is a
// container or somebody else's, the test is skipped, with the reason on standard output. If there is no server at
// all, it fails.
func Dedicated(tb testing.TB, settings map[string]string) *pgserver.Server {
	tb.Helper()
	o := ownServers(tb)
	o.Settings = settings
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, o)
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

// Programs returns the server programs of this machine, for a test that runs servers by itself. Without programs the
// test is skipped or fails as with Dedicated.
func Programs(tb testing.TB) pgprograms.Programs {
	tb.Helper()
	return ownServers(tb).Programs
}

func ownServers(tb testing.TB) pgserver.Options {
	tb.Helper()
	if err := shared.startOwn(); err != nil {
		if sharedErr := shared.get(); sharedErr != nil {
			tb.Fatal(sharedErr)
		}
		reason := fmt.Sprintf("pgtest: %s needs server programs on this machine, to kill and restart a server of its "+
			"own: %v", tb.Name(), err)
		fmt.Fprintln(os.Stdout, reason)
		tb.Skip(reason)
	}
	return shared.own
}

// startOwn finds programs, once. A shared server that was named, or a
// container, does not keep installed programs from being used, but prevents a download.
func (c *cluster) startOwn() error {
	c.ownOnce.Do(func() {
		forced, err := pgserver.ForcedKind(pgserver.KindURL, pgserver.KindPrograms, pgserver.KindDownload,
			pgserver.KindDocker)
		if c.ownErr = err; err != nil {
			return
		}
		if forced == pgserver.KindURL || forced == pgserver.KindDocker {
			forced = pgserver.KindPrograms
		}
		ctx, cancel := context.WithTimeout(c.ctx, startTimeout)
		defer cancel()
		o := pgserver.Options{InMemory: true}
		o.Programs, o.Kind, c.ownErr = pgserver.LocatePrograms(ctx, forced, stdout)
		c.own = o
	})
	return c.ownErr
}
