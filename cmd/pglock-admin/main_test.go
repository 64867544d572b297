package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/dev/troubles"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// asProgram is the environment variable that makes the test binary behave as pglock-admin, for tests that need it as a
// process: the demo starts its own program again, and so does this one.
const asProgram = "PGLOCK_ADMIN_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if troubles.IsWorker() {
		os.Exit(troubles.Work())
	}
	if os.Getenv(asProgram) != "" {
		os.Exit(mainWithSignals())
	}
	heedAll()
	_ = flag.Set("test.parallel", "16")                 // most tests wait; the command line says it better
	if err := os.Unsetenv("DATABASE_URL"); err != nil { // the developer's; a test sets its own
		panic(err)
	}
	// Bubble Tea leaves the goroutine that reads the terminal behind when an answer of the terminal comes after its
	// end.
	answered := goleak.IgnoreTopFunction("github.com/charmbracelet/ultraviolet.(*TerminalReader).sendEvents")
	pgtest.Main(m, pgtest.IgnoreLeaks(answered),
		pgtest.PGOptions("-c jit=off"), // compiling a query that runs once takes longer than the query
		pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// heedAll makes the programs that tests start heed signals that this process was started to ignore, as under nohup: a
// program inherits what is ignored, and not what is caught.
func heedAll() {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// answer is what one command line gave.
type answer struct {
	code           int
	stdout, stderr string
}

// admin runs a command line.
func admin(tb testing.TB, args ...string) answer {
	tb.Helper()
	return with(tb, os.Getenv, args...)
}

// in runs a command against a database, which the environment names.
func in(tb testing.TB, url string, args ...string) answer {
	tb.Helper()
	return with(tb, func(name string) string {
		if name == "DATABASE_URL" {
			return url
		}
		return os.Getenv(name)
	}, args...)
}

func with(tb testing.TB, getenv func(string) string, args ...string) answer {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	code := obey(tb.Context(), args, getenv, &stdout, &stderr)
	a := answer{code, stdout.String(), stderr.String()}
	if strings.Contains(a.stdout+a.stderr, "\x1b") {
		tb.Errorf("pglock-admin %q wrote a raw escape:\n%q\n%q", args, a.stdout, a.stderr)
	}
	if code != cli.ExitOK && !strings.Contains(a.stderr, "try: ") && !strings.Contains(a.stderr, `"hint"`) &&
		!strings.Contains(a.stderr, "\nhint: ") {
		tb.Errorf("pglock-admin %q does not say what to do next: %q", args, a.stderr)
	}
	for _, out := range []string{a.stdout, a.stderr} {
		if twice := keyTwice(json.NewDecoder(strings.NewReader(out))); twice != "" && strings.HasPrefix(out, "{") {
			tb.Errorf("pglock-admin %q wrote the key %q twice:\n%s", args, twice, out)
		}
	}
	if strings.Contains(a.stderr, "Usage:") {
		tb.Errorf("pglock-admin %q dumps its usage:\n%s", args, a.stderr)
	}
	return a
}

func (a answer) want(tb testing.TB, code int, texts ...string) answer {
	tb.Helper()
	if a.code != code {
		tb.Errorf("exit code %d, want %d\n%s%s", a.code, code, a.stdout, a.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(a.stdout+a.stderr, text) {
			tb.Errorf("no %q in\n%s%s", text, a.stdout, a.stderr)
		}
	}
	return a
}

func decode[T any](tb testing.TB, text string) (v T) {
	tb.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		tb.Fatalf("%v in %s", err, text)
	}
	return v
}

// hold takes a lock for the length of the test.
func hold(tb testing.TB, db *pgtest.DB, holder, name string, opts ...pglock.AcquireOption) *pglock.Lease {
	tb.Helper()
	client := must.Get(pglock.New(tb.Context(), db.Pool(tb), pglock.WithDefaultHolder(holder),
		pglock.WithDefaultTTL(time.Minute)))(tb)
	tb.Cleanup(func() {
		must.Note(tb, client.Close(context.Background()))
	})
	lease := must.Get(client.TryAcquire(tb.Context(), name, opts...))(tb)
	return lease
}

func execute(tb testing.TB, db *pgtest.DB, sql string, args ...any) {
	tb.Helper()
	db.Look(tb, func(conn *pgx.Conn) {
		must.Get(conn.Exec(tb.Context(), sql, args...))(tb)
	})
}

// keyTwice returns a key that a JSON object has twice, or "". It stops at what is no JSON.
func keyTwice(d *json.Decoder) (twice string) {
	var value func() bool
	value = func() bool {
		token, err := d.Token()
		if err != nil {
			return false
		}
		if token != json.Delim('{') && token != json.Delim('[') {
			return true
		}
		seen := make(map[string]bool)
		for d.More() {
			if token == json.Delim('{') {
				key, err := d.Token()
				name, _ := key.(string)
				if err != nil {
					return false
				}
				if seen[name] && twice == "" {
					twice = name
				}
				seen[name] = true
			}
			if !value() {
				return false
			}
		}
		_, err = d.Token()
		return err == nil
	}
	for value() {
	}
	return twice
}
