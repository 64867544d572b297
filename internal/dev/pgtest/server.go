package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

// startTimeout limits the start of a container, including the download of its image, and that of another server,
// including the download of programs.
const startTimeout = 5 * time.Minute

// shared is the server of the package under test.
var shared = newCluster()

// A cluster is one server and the databases that this process made in it. It is started and closed at most once; it
// starts when a test first asks.
type cluster struct {
	options
	prepared bool // Main runs

	ctx    context.Context // ends when the cluster is closed
	cancel context.CancelFunc
	close  func() error

	dockerTimeout time.Duration

	start    sync.Once
	server   *pgserver.Server
	end      func() error // ends the server, if it is ours
	startErr error

	id       int32
	presence *pgx.Conn     // holds the id
	admin    *pgxpool.Pool // makes and drops databases
	old      bool          // the server is of version 14
	made     atomic.Int64  // databases
	room     *room         // where tests begin

	migrated   sync.Once
	migrateErr error

	ownOnce sync.Once
	own     pgserver.Options // of servers that are started here
	ownErr  error
}

func newCluster() *cluster {
	c := &cluster{room: newRoom(runnable), dockerTimeout: startTimeout}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.close = sync.OnceValue(c.shut)
	return c
}

// Server returns the server that the tests of this package share, and starts it if necessary. It belongs to Main: a
// test must not stop, kill or restart it, nor change its settings; see Dedicated. The test fails if there is no
// server.
func Server(tb testing.TB) *pgserver.Server {
	tb.Helper()
	if err := shared.get(); err != nil {
		tb.Fatal(err)
	}
	return shared.server
}

// stdout is the process's own: while an Example runs, its output is read from os.Stdout.
var stdout = os.Stdout

func (c *cluster) get() error {
	if !c.prepared {
		return errors.New("pgtest: the package needs: func TestMain(m *testing.M) { pgtest.Main(m) }")
	}
	c.start.Do(func() {
		if c.startErr = c.obtain(); c.startErr == nil {
			fmt.Fprintf(stdout, "pgtest: %s: using %s\n", program, c.server.Description())
			ctx, cancel := context.WithTimeout(c.ctx, startTimeout)
			defer cancel()
			c.startErr = c.connect(ctx)
		}
	})
	return c.startErr
}

// obtain fails if the given connection string leads nowhere: whoever set it does not want another server.
func (c *cluster) obtain() (err error) {
	forced, url := pgserver.Kind(os.Getenv(pgserver.Variable)), os.Getenv(URLVariable)
	var noDocker error
	switch {
	case c.docker != nil && (forced == "" || forced == pgserver.KindDocker):
		ctx, cancel := context.WithTimeout(c.ctx, c.dockerTimeout)
		defer cancel()
		if c.server, c.end, noDocker = c.docker(ctx); noDocker == nil || forced != "" {
			return noDocker
		}
	case forced == pgserver.KindDocker:
		return fmt.Errorf("pgtest: %s: only the tests in integration know %q", pgserver.Variable, forced)
	}
	ctx, cancel := context.WithTimeout(c.ctx, startTimeout) // nothing is left of Docker's when an image does not come
	defer cancel()
	if forced == pgserver.KindURL || forced == "" && url != "" {
		c.server, err = pgserver.Locate(ctx, url, stdout)
	} else if err = c.startOwn(); err == nil {
		c.server, err = pgserver.Start(ctx, c.own)
	}
	if err != nil {
		return fmt.Errorf("pgtest: no PostgreSQL server for the tests. Name one in %s, or install server programs: %w",
			URLVariable, errors.Join(noDocker, err))
	}
	c.end = c.server.Stop
	return nil
}

// shut waits for a start under way, so that nothing is started after it.
func (c *cluster) shut() error {
	c.cancel()
	over := errors.New("pgtest: the tests are over")
	c.start.Do(func() { c.startErr = over })
	c.ownOnce.Do(func() { c.ownErr = over })
	var errs []error
	if c.end != nil {
		errs = append(errs, c.disconnect(), c.end())
	}
	return errors.Join(errs...)
}
