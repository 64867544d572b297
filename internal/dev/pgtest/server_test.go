package pgtest

import (
	"context"
	"testing"
	"time"

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
	if err := c.get(); err != nil {
		t.Error(err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}
