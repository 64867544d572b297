package pgtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/pglock-dev/pglock/internal/pgserver"
)

// startTimeout bounds the start of the shared server, with the fetching of an
// image or of programs.
const startTimeout = 5 * time.Minute

// shared is the server of the package under test.
var shared = newCluster()

// A cluster is one server and the databases that this process made in it. It is
// started at most once, when a test first asks, and closed at most once.
type cluster struct {
	options  options
	prepared bool // Main runs

	ctx    context.Context // ends when the cluster is closed
	cancel context.CancelFunc

	start    sync.Once
	server   *pgserver.Server
	end      func() error // ends the server, if it is ours
	startErr error
	presence *pgx.Conn // on somebody else's server only

	template    sync.Once
	templateErr error
	databases   names
}

func newCluster() *cluster {
	ctx, cancel := context.WithCancel(context.Background())
	return &cluster{ctx: ctx, cancel: cancel, databases: newNames(time.Now())}
}

// Server gives the server that the tests of this package share, starting it if
// need be. It belongs to Main: a test must neither stop, kill nor restart it,
// nor change its settings; see Dedicated. The test fails when there is no
// server to be had.
func Server(tb testing.TB) *pgserver.Server {
	tb.Helper()
	server, err := shared.get()
	if err != nil {
		tb.Fatal(err)
	}
	return server
}

var errNoMain = errors.New("pgtest: the package needs: func TestMain(m *testing.M) { pgtest.Main(m) }")

func (c *cluster) get() (*pgserver.Server, error) {
	if !c.prepared {
		return nil, errNoMain
	}
	c.start.Do(func() {
		if c.startErr = c.ctx.Err(); c.startErr != nil {
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, startTimeout)
		defer cancel()
		if c.server, c.end, c.startErr = obtain(ctx, c.options.preferDocker); c.startErr != nil {
			return
		}
		fmt.Fprintf(stdout, "pgtest: %s: using %s\n", packagePath(), c.server.Description())
		if c.server.Kind() == pgserver.KindURL {
			c.startErr = c.signIn(ctx, time.Now())
		}
	})
	return c.server, c.startErr
}

// close waits for a start that is under way, so that nothing is started after
// it.
func (c *cluster) close() error {
	c.cancel()
	c.start.Do(func() { c.startErr = errors.New("pgtest: the tests are over") })
	if c.startErr != nil {
		return nil
	}
	errs := []error{c.dropDatabases()}
	if c.presence != nil {
		// Whoever runs the server may have ended the connection.
		_ = c.presence.Close(context.WithoutCancel(c.ctx))
	}
	return errors.Join(append(errs, c.end())...)
}

func (c *cluster) leakOptions() []goleak.Option {
	return append(leaksOf(c.server), c.options.ignoredLeaks...)
}
