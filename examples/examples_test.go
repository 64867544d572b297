package examples_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	_ "github.com/pglock-dev/pglock/leader" // so that a change of what the examples use is a change of these tests
	"github.com/pglock-dev/pglock/migrations"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "5") // the programs wait more than they work; -parallel still counts
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// told is what each recipe's program must say, in this order.
var told = map[string][]string{
	"nightly": {"A         has counted the orders: half way", `queue     of "nightly": 7`,
		"A         is KILLED", "made the report of", "finds the report of", "made the report of", "reports: 2",
		"total of each report: {42,42}", "SHOWN: eight replicas made one report for each night"},
	"singleton": {"A         is in the middle of order 5", "A         is KILLED", "B         ships order 5",
		"B         is KILLED", "C         ships order 12", "in this order: 1 2 3 4 5 6 7 8 9 10 11 12",
		"SHOWN: one process at a time"},
	"migrate": {"A         makes 0001", "A         has filled 500", "A         is KILLED", "makes 0002",
		"makes 0003", "serves", "migrations made: 1 2 3", "customers with an address: 1000",
		"SHOWN: one of six replicas made each migration"},
	"consumer": {"A         is in the middle of message-4", "A         is KILLED",
		"B         handles message-4", "C         acknowledges message-6", "C         puts message-7 aside",
		"messages handled: 6", "handled twice: 0", "SHOWN: each message was handled once"},
	"ledger": {"A         has taken 30 from account 1", "A         is KILLED", "psql      UPDATE", "REFUSED",
		"has made 20 transfers", "sum of all accounts: 400", "transfers: 60", "differ from their transfers: 0",
		"SHOWN: no money was lost or made"},
	"limit": {"is called for item-1", "3 callers", "A         is KILLED", "3 callers",
		"has the answer to item-1", "answers: 12", "SHOWN: three processes of six"},
	"leader": {"A         leads", `queue     of "leader/planner": 3`, "A         is KILLED", "B         leads",
		"D         leads", "C         leads", "in this order: A B D C", "after the next one began: 0",
		"SHOWN: one process led at a time"},
	"outside": {`A         writes "Monday, token `, `A         puts "Monday, token `,
		"operator  breaks the lease of A", `B         writes "Tuesday`,
		`A         writes "late Monday, token 1" into the file: REFUSED by the fence`,
		`A         puts "late Monday, token 1" on the page: REFUSED with 409`,
		"operator  breaks the lease of C", `C         finds its lease lost after it wrote "Wednesday, token`,
		"UNDONE", `C         puts "Wednesday`, "NOT SENT", "operator  breaks the lease of D",
		`E         writes "Friday, token `, "D         finds its lease lost after it wrote", "LEFT ALONE",
		"F         is in the middle", "F         is KILLED", `G         writes "Sunday, token `,
		"file      Sunday, token ", "page      Sunday, token ", "SHOWN: the last good write stands"},
	"split": {"part 1    has ", "part 2    has ", "both      have 40 of 40 names", "acme      has 2 locks at once",
		"at once: REFUSED", "came twice", "under a lock of the other: REFUSED", "SHOWN: each lock, its fence"},
}

// build makes the examples' programs. go run, which hands them to cp, keeps them in its cache, as go build does not:
// what has not changed since the last run is not linked again.
func build(t *testing.T, names []string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	args := []string{"run", "-ldflags=-s -w", "-exec", "cp"}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, racing) {
		args = append(args, "-race")
	}
	for _, name := range names {
		args := append(slices.Clip(args), "./"+name, filepath.Join(folder, name))
		//nolint:gosec // the examples
		if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	return folder
}

// racing is what a test program knows that was built with the race detector.
var racing = debug.BuildSetting{Key: "-race", Value: "true"}

// command is an example's program. A process of it that outlived it would keep its output open: WaitDelay tells.
func command(t *testing.T, path string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, path, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	return cmd, &out
}

func wantStory(t *testing.T, name, story string) {
	t.Helper()
	rest := story
	for _, want := range told[name] {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("%q is not told, or not here:\n%s", want, story)
		}
		rest = after
	}
}

// wantNoSchema checks that a program has dropped what it made.
func wantNoSchema(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	var left string
	const schemas = "SELECT coalesce(string_agg(nspname, ' '), '') FROM pg_namespace WHERE nspname LIKE 'pglock%'"
	err := conn.QueryRow(t.Context(), schemas).Scan(&left)
	if err != nil || left != "" {
		t.Errorf("schemas are left: %s, %v", left, err)
	}
}

func TestRecipes(t *testing.T) {
	names := slices.Sorted(maps.Keys(told))
	folder := build(t, names)
	for _, name := range names {
		t.Run("AProcessIsKilledAndThePromiseOf/"+name, func(t *testing.T) {
			t.Parallel()
			keepsItsPromise(t, filepath.Join(folder, name))
		})
	}
	t.Run("BringTheirOwnServerAndLeaveNoFolder", func(t *testing.T) {
		t.Parallel()
		bringsItsOwnServer(t, filepath.Join(folder, "migrate"))
	})
	t.Run("LeaveNothingWhenInterrupted", func(t *testing.T) {
		t.Parallel()
		leavesNothing(t, filepath.Join(folder, "singleton"), os.Interrupt)
	})
	t.Run("LeaveNothingWhenTheTerminalGoes", func(t *testing.T) {
		t.Parallel()
		leavesNothing(t, filepath.Join(folder, "singleton"), syscall.SIGHUP)
	})
}

func keepsItsPromise(t *testing.T, path string) {
	db := pgtest.EmptyDatabase(t)
	cmd, out := command(t, path, "--database-url", db.URL())
	cmd.Env = append(os.Environ(), pgserver.Variable+"="+string(pgserver.KindURL))
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wantStory(t, filepath.Base(path), out.String())
	wantNoSchema(t, db.Conn(t))
	if filepath.Base(path) == "split" { // no other example makes a database
		var left int
		const databases = "SELECT count(*) FROM pg_database WHERE datname LIKE 'pglock_example%'"
		if err := db.Conn(t).QueryRow(t.Context(), databases).Scan(&left); err != nil || left > 0 {
			t.Errorf("%d databases are left, %v", left, err)
		}
	}
}

func bringsItsOwnServer(t *testing.T, path string) {
	if kind, err := pgserver.ForcedKind(pgserver.KindPrograms, pgserver.KindDownload); err != nil {
		t.Skipf("the environment wants no server of the example's own: %v", err)
	} else if kind == "" {
		if _, _, err := pgserver.LocatePrograms(t.Context(), pgserver.KindPrograms, io.Discard); err != nil {
			t.Skipf("no programs are installed, and none are downloaded for this: %v", err)
		}
	}
	temporary := must.Get(os.MkdirTemp("", "pglock-examples-"))(t)
	t.Cleanup(func() {
		if err := os.RemoveAll(temporary); err != nil {
			t.Error(err)
		}
	})
	//nolint:gosec // where root runs this, the server runs as another user
	must.Do(t, os.Chmod(temporary, 0o755))
	cmd, out := command(t, path)
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary, "PGSERVICE=none", "PGOPTIONS=-c role=nobody_here")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wantStory(t, filepath.Base(path), out.String())
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func leavesNothing(t *testing.T, path string, s os.Signal) {
	if signal.Ignored(s) { // as under nohup, which a program inherits
		signal.Notify(make(chan os.Signal, 1), s)
	}
	db := pgtest.EmptyDatabase(t)
	cmd, out := command(t, path, "--database-url", db.URL())
	cmd.Env = append(os.Environ(), pgserver.Variable+"="+string(pgserver.KindURL))
	stdout, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	cmd.Stdout = writer
	must.Do(t, errors.Join(cmd.Start(), writer.Close()))
	var said bytes.Buffer
	for buffer := make([]byte, 4096); !strings.Contains(said.String(), "ships order 1"); {
		n, err := stdout.Read(buffer)
		if said.Write(buffer[:n]); err != nil {
			t.Fatalf("%v\n%s", err, said.String())
		}
	}
	must.Do(t, cmd.Process.Signal(s))
	if _, err := io.Copy(&said, stdout); err != nil { // ends with the last process of it
		t.Fatal(err)
	}
	var exit *exec.ExitError
	err = cmd.Wait()
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out.String(), "interrupted") {
		t.Errorf("%v\n%s%s", err, said.String(), out.String())
	}
	wantNoSchema(t, db.Conn(t))
}
