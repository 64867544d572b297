package pgtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/pgserver"
)

// failing are the ways, of which none leads to a server but those given.
func failing(preferDocker bool, good ...pgserver.Kind) []way {
	all := ways(preferDocker)
	for i, w := range all {
		all[i].start = func(context.Context) (*pgserver.Server, func() error, error) {
			switch {
			case slices.Contains(good, w.kind):
				return pgserver.Known(w.kind, "", ""), func() error { return nil }, nil
			case w.kind == pgserver.KindURL:
				return nil, nil, errNoURL
			}
			return nil, nil, errors.New("no luck with " + string(w.kind))
		}
	}
	return all
}

func TestFirstServerToBeHadIsTaken(t *testing.T) {
	const url, programs, docker, download = pgserver.KindURL, pgserver.KindPrograms, pgserver.KindDocker, pgserver.KindDownload
	for _, c := range []struct {
		preferDocker bool
		forced       pgserver.Kind
		good         []pgserver.Kind
		want         pgserver.Kind
	}{
		{false, "", []pgserver.Kind{url, programs, docker, download}, url},
		{false, "", []pgserver.Kind{programs, docker, download}, programs},
		{false, "", []pgserver.Kind{docker, download}, docker},
		{false, "", []pgserver.Kind{download}, download},
		{true, "", []pgserver.Kind{url, programs, docker, download}, docker},
		{true, "", []pgserver.Kind{url, programs, download}, url},
		{true, "", []pgserver.Kind{programs, download}, programs},
		{false, docker, []pgserver.Kind{url, programs, docker, download}, docker},
		{true, download, []pgserver.Kind{url, programs, docker, download}, download},
	} {
		server, _, err := obtainFrom(t.Context(), failing(c.preferDocker, c.good...), c.forced)
		if err != nil || server.Kind() != c.want {
			t.Errorf("%+v: got %v, %v", c, server, err)
		}
	}
}

func TestWithoutAServerTheErrorNamesTheThreeWaysAndWhyEachFailed(t *testing.T) {
	_, _, err := obtainFrom(t.Context(), failing(false), "")
	if err == nil {
		t.Fatal("got a server")
	}
	for _, want := range []string{
		URLVariable + ": it is not set",
		"installed server programs: no luck with programs",
		"a Docker engine: no luck with docker",
		"a download of server programs: no luck with download",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing of %q in:\n%v", want, err)
		}
	}
}
