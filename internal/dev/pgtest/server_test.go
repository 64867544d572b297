package pgtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

func TestAnImageThatDoesNotComeLeavesTimeForAnotherServer(t *testing.T) {
	url := Server(t).URL()
	t.Setenv(pgserver.Variable, "")
	t.Setenv(URLVariable, url)
	c := newCluster()
	c.prepared, c.dockerTimeout = true, time.Millisecond
	c.docker = func(ctx context.Context) (*pgserver.Server, func() error, error) {
		<-ctx.Done()
		return nil, nil, context.Cause(ctx)
	}
	must.Note(t, c.get())
	must.Note(t, c.close())
}

func TestAServerThatIsTooOldIsRefusedWithItsVersion(t *testing.T) {
	for version, want := range map[string]bool{"14.19 (Debian 14.19-1)": true, "14beta1": true, "15.18": false,
		"18devel": false, "140.1": false} {
		if old, err := isOld(version); err != nil || old != want {
			t.Errorf("%s: old is %v, %v", version, old, err)
		}
	}
	for _, version := range []string{"13.22 (Debian 13.22-1)", "9.6.24", ""} {
		if _, err := isOld(version); err == nil || !strings.Contains(err.Error(), "PostgreSQL "+version+"; ") {
			t.Errorf("%s: %v", version, err)
		}
	}
}
