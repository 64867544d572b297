package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/pglock-dev/pglock/internal/pgdownload"
	"github.com/pglock-dev/pglock/internal/pgprograms"
	"github.com/pglock-dev/pglock/internal/pgserver"
)

// A way is one place where a server can come from. The function that start gives
// ends the server, if it is ours.
type way struct {
	kind  pgserver.Kind
	name  string
	start func(context.Context) (*pgserver.Server, func() error, error)
}

// ways are in the order in which they are tried.
func ways(preferDocker bool) []way {
	url := way{pgserver.KindURL, "a connection string in " + URLVariable, fromURL}
	programs := way{pgserver.KindPrograms, "installed server programs", fromPrograms}
	docker := way{pgserver.KindDocker, "a Docker engine", fromDocker}
	download := way{pgserver.KindDownload, "a download of server programs", fromDownload}
	if preferDocker {
		return []way{docker, url, programs, download}
	}
	return []way{url, programs, docker, download}
}

// obtain gives the first server to be had, of the kind that is forced.
func obtain(ctx context.Context, preferDocker bool) (*pgserver.Server, func() error, error) {
	forced, err := pgserver.ForcedKind(pgserver.KindURL, pgserver.KindPrograms, pgserver.KindDocker, pgserver.KindDownload)
	if err != nil {
		return nil, nil, fmt.Errorf("pgtest: %w", err)
	}
	return obtainFrom(ctx, ways(preferDocker), forced)
}

// obtainFrom goes from one way to the next, but not from a connection string
// that leads nowhere: whoever set it does not want another server.
func obtainFrom(ctx context.Context, ways []way, forced pgserver.Kind) (*pgserver.Server, func() error, error) {
	missing := &noServerError{}
	for _, w := range ways {
		if forced != "" && w.kind != forced {
			missing.add(w, fmt.Errorf("not tried, because %s is %s", pgserver.Variable, forced))
			continue
		}
		server, end, err := w.start(ctx)
		if err == nil {
			return server, end, nil
		}
		missing.add(w, err)
		if w.kind == pgserver.KindURL && !errors.Is(err, errNoURL) {
			return nil, nil, fmt.Errorf("pgtest: %s: %w", URLVariable, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, nil, missing
}

// noServerError names the ways to a server, and why each did not lead to one.
type noServerError struct{ reasons []string }

func (e *noServerError) add(w way, err error) {
	reason := strings.ReplaceAll(err.Error(), "\n", "\n      ")
	e.reasons = append(e.reasons, fmt.Sprintf("  - %s: %s", w.name, reason))
}

func (e *noServerError) Error() string {
	return fmt.Sprintf("pgtest: no PostgreSQL server for the tests. There are three ways to give them one: "+
		"a connection string in %s, installed server programs (initdb, pg_ctl and postgres, %d or newer), or a Docker engine. Tried:\n%s",
		URLVariable, pgprograms.MinMajor, strings.Join(e.reasons, "\n"))
}

var errNoURL = errors.New("it is not set")

func fromURL(ctx context.Context) (*pgserver.Server, func() error, error) {
	url := os.Getenv(URLVariable)
	if url == "" {
		return nil, nil, errNoURL
	}
	server, err := pgserver.Connect(ctx, url)
	return server, func() error { return nil }, err
}

func fromPrograms(ctx context.Context) (*pgserver.Server, func() error, error) {
	programs, err := pgprograms.Find(ctx)
	if err != nil {
		return nil, nil, err
	}
	return startShared(ctx, pgserver.Options{Programs: programs, Kind: pgserver.KindPrograms})
}

func fromDownload(ctx context.Context) (*pgserver.Server, func() error, error) {
	programs, err := pgdownload.Fetch(ctx, os.Stdout)
	if err != nil {
		return nil, nil, err
	}
	return startShared(ctx, pgserver.Options{Programs: programs, Kind: pgserver.KindDownload})
}

func startShared(ctx context.Context, o pgserver.Options) (*pgserver.Server, func() error, error) {
	server, err := pgserver.Start(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	return server, server.Stop, nil
}
