// Package pgtest gives tests a PostgreSQL server and each of them a database of
// its own. It is for tests only.
//
// A test package has one server, started when a test first asks:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// The server is the one that PGLOCK_TEST_DATABASE_URL names; without that
// variable one from installed programs; else a container, where a Docker engine
// answers; else one from downloaded programs. PGLOCK_SERVER (url, programs,
// docker or download) allows only one of these. Without any server the tests
// that ask for one fail; they are never skipped.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// URLVariable is the environment variable with the connection string of the
// server that the tests use. Its user must be allowed to create databases.
const URLVariable = "PGLOCK_TEST_DATABASE_URL"

// ImageVariable is the environment variable with the image of the container.
// Defaults to DefaultImage.
const ImageVariable = "PGLOCK_TEST_IMAGE"

// DefaultImage is what containers are made of when ImageVariable is not set.
const DefaultImage = "postgres:17-alpine"

// An Option changes what Main does.
type Option func(*options)

type options struct {
	template     func(ctx context.Context, url string) error
	preferDocker bool
	ignoredLeaks []goleak.Option
}

// WithTemplate makes the databases of Database copies of one on which migrate
// ran, once per test package. Defaults to copies of an empty one.
func WithTemplate(migrate func(ctx context.Context, url string) error) Option {
	return func(o *options) { o.template = migrate }
}

// PreferDocker puts a container before installed programs. Without an engine
// or an image the order is the usual one.
func PreferDocker() Option {
	return func(o *options) { o.preferDocker = true }
}

// IgnoreLeaks adds to the goroutines that may still run after the tests.
// Defaults to none.
func IgnoreLeaks(ignored ...goleak.Option) Option {
	return func(o *options) { o.ignoredLeaks = append(o.ignoredLeaks, ignored...) }
}

// Main runs the tests of a package and ends the process with their exit code.
// Between the two it drops the databases it made, ends the server it started,
// and fails when goroutines are left. On an interrupt or a request to terminate
// it does the same cleaning and exits with 130 or 143.
func Main(m *testing.M, opts ...Option) {
	os.Exit(run(m, opts))
}

func run(m *testing.M, opts []Option) int {
	if code, is := mindContainer(); is {
		return code
	}
	for _, opt := range opts {
		opt(&shared.options)
	}
	shared.prepared = true
	unwatch := watchSignals()
	code := m.Run()
	err := shared.close()
	unwatch()
	if err != nil {
		fmt.Fprintf(os.Stderr, "pgtest: %s: cleaning up: %v\n", packagePath(), err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(shared.leakOptions()...); err != nil {
			fmt.Fprintf(os.Stderr, "pgtest: %s: goroutines left after the tests: %v\n", packagePath(), err)
			code = 1
		}
	}
	return code
}

// cleanupPatience bounds the cleaning after a signal.
const cleanupPatience = 20 * time.Second

// watchSignals ends the process in an orderly way on the first signal, and at
// once on the second. The function it gives ends the watch.
func watchSignals() func() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-quit:
		case s := <-signals:
			code := 130
			if s == syscall.SIGTERM {
				code = 143
			}
			cleaned := make(chan struct{})
			go func() {
				defer close(cleaned)
				if err := shared.close(); err != nil {
					fmt.Fprintf(os.Stderr, "pgtest: %s: cleaning up after %v: %v\n", packagePath(), s, err)
				}
			}()
			late := time.NewTimer(cleanupPatience)
			defer late.Stop()
			select {
			case <-cleaned:
			case <-signals:
			case <-late.C:
			}
			os.Exit(code)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(quit)
		<-done
	}
}

// packagePath is the import path of the package under test.
func packagePath() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return os.Args[0]
	}
	return strings.TrimSuffix(info.Path, ".test")
}
