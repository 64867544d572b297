// Package pgtest gives a test package a PostgreSQL server, and each test a database. It is for tests only.
//
// A test package has one server, started when a test first asks:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// The server is the one that PGLOCK_TEST_DATABASE_URL names; without that variable one from installed programs; else
// one from downloaded programs. PGLOCK_SERVER (url, programs or download) allows only one of these. Without any
// server the tests that need one fail; they are never skipped.
package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/tier"
)

// URLVariable names the environment variable with the connection string of the server for the tests. Its user must be
// allowed to create databases.
const URLVariable = "PGLOCK_TEST_DATABASE_URL"

// An Option changes what Main does.
type Option func(*options)

type options struct {
	migrate      func(ctx context.Context, url string) error
	docker       func(context.Context) (*pgserver.Server, func() error, error)
	ignoredLeaks []goleak.Option
	pgOptions    string
}

// WithTemplate makes Database copy a database on which migrate ran, once per test package. Defaults to an empty one.
func WithTemplate(migrate func(ctx context.Context, url string) error) Option {
	return func(o *options) { o.migrate = migrate }
}

// PreferDocker uses the server that start returns, and that end ends, before any other, and knows
// PGLOCK_SERVER=docker. If start fails, the usual order applies.
func PreferDocker(start func(context.Context) (server *pgserver.Server, end func() error, err error)) Option {
	return func(o *options) { o.docker = start }
}

// IgnoreLeaks allows more goroutines to survive the tests. Defaults to none.
func IgnoreLeaks(ignored ...goleak.Option) Option {
	return func(o *options) { o.ignoredLeaks = append(o.ignoredLeaks, ignored...) }
}

// PGOptions gives the sessions of this process, and of those that it starts, settings as the variable PGOPTIONS does.
// Defaults to none.
func PGOptions(settings string) Option {
	return func(o *options) { o.pgOptions = settings }
}

// Main runs the tests of a package and ends the process with their exit code. In between it drops the databases it
// made, ends the server it started, and fails if goroutines are left. On an interrupt, a request to terminate, or the
// end of its terminal it cleans up likewise and exits with 130, 143 or 129; on a second one it ends at once.
func Main(m *testing.M, opts ...Option) {
	for _, opt := range opts {
		opt(&shared.options)
	}
	if code := complain("the PG* variables", shared.setPG()); code != 0 {
		os.Exit(code)
	}
	shared.prepared = true
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, pgserver.Ending()...)
	go func() {
		if s, is := <-signals; is {
			signal.Reset()
			complain("cleaning up", shared.close())
			os.Exit(128 + int(s.(syscall.Signal)))
		}
	}()
	if says := tier.Choose(); says != "" {
		fmt.Fprintf(os.Stderr, "pgtest: %s: %s\n", program, says)
	}
	waitTogether()
	code := m.Run()
	code = max(code, complain("cleaning up", shared.close()))
	signal.Stop(signals) // nothing is sent when it returns
	close(signals)
	if code == 0 {
		code = complain("goroutines left after the tests", goleak.Find(shared.ignoredLeaks...))
	}
	os.Exit(code)
}

// setPG keeps what the PG* variables say of another server from the sessions of the tests, unless somebody has named
// the server, who may need them for it.
func (o *options) setPG() (err error) {
	if forced := pgserver.Kind(os.Getenv(pgserver.Variable)); os.Getenv(URLVariable) == "" ||
		forced != "" && forced != pgserver.KindURL {
		err = pgserver.UnsetPG()
	}
	if o.pgOptions != "" {
		err = errors.Join(err, os.Setenv("PGOPTIONS", o.pgOptions))
	}
	return err
}

// waitTogether lets more tests run at once than there are processors, unless the command line says how many: most of
// them wait for a clock, or for a server.
func waitTogether() {
	const name = "test.parallel"
	if !tier.Given(flag.CommandLine, name) {
		_ = flag.Set(name, strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))) // a number it takes
	}
}

// program is the test package's name in what is printed.
var program = filepath.Base(os.Args[0])

// complain prints an error, if there is one, and returns the exit code.
func complain(of string, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "pgtest: %s: %s: %v\n", program, of, err)
	return 1
}
