//go:build unix

package pgtest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// childVariable makes TestChild do something; what it says is what.
const childVariable = "PGLOCK_PGTEST_TEST_CHILD"

// TestChild is the test of a package in trouble. Other tests run it in a
// process of its own.
func TestChild(t *testing.T) {
	what := os.Getenv(childVariable)
	if what == "" {
		return // not in such a process
	}
	db := pgtest.Database(t)
	db.Conn(t)
	fmt.Println("ready", pgtest.Server(t).DataDir())
	switch what {
	case "wait":
		_, _ = io.ReadAll(os.Stdin)
	case "panic":
		panic("on purpose")
	case "leak":
		go func() { select {} }()
	}
}

// A child is a process that runs TestChild.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

func startChild(tb testing.TB, what string, env ...string) *child {
	tb.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(append(os.Environ(), childVariable+"="+what), env...)
	stdin := must.Get(cmd.StdinPipe())(tb)
	stdout := must.Get(cmd.StdoutPipe())(tb)
	cmd.Stderr = cmd.Stdout
	must.Do(tb, cmd.Start())
	return &child{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)}
}

// ready waits until the child has its database, and gives its data folder, if
// it has one.
func (c *child) ready(tb testing.TB) string {
	tb.Helper()
	var said strings.Builder
	for {
		line, err := c.out.ReadString('\n')
		said.WriteString(line)
		if dir, ok := strings.CutPrefix(line, "ready "); ok {
			return strings.TrimSpace(dir)
		}
		if err != nil {
			tb.Fatalf("the child got no database: %v\n%s", err, said.String())
		}
	}
}

// end waits for the end, and gives the exit code and what the child said.
func (c *child) end(tb testing.TB) (int, string) {
	tb.Helper()
	said, err := io.ReadAll(c.out)
	if err != nil {
		tb.Fatal(err)
	}
	err = c.cmd.Wait()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		tb.Fatal(err)
	}
	return c.cmd.ProcessState.ExitCode(), string(said)
}

func eventuallyGone(tb testing.TB, path string) {
	tb.Helper()
	pgtest.Eventually(tb, path+" to go", func() bool {
		_, err := os.Stat(path)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestNoServerFailsTheTestAndTellsWhatToDo(t *testing.T) {
	t.Parallel()
	c := startChild(t, "end", pgserver.Variable+"=url", pgtest.URLVariable+"=")
	code, said := c.end(t)
	if code == 0 {
		t.Error("the tests pass without a server")
	}
	for _, want := range []string{"--- FAIL: TestChild", pgtest.URLVariable, "install server programs"} {
		if !strings.Contains(said, want) {
			t.Errorf("nothing of %q in:\n%s", want, said)
		}
	}
}

func TestConnectionStringThatLeadsNowhereFailsTheTest(t *testing.T) {
	t.Parallel()
	c := startChild(t, "end", pgserver.Variable+"=", pgtest.URLVariable+"=postgres://u:hush-hush@127.0.0.1:1/x")
	code, said := c.end(t)
	if code == 0 || !strings.Contains(said, pgtest.URLVariable) || strings.Contains(said, "hush-hush") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

func TestUnknownKindFailsTheTest(t *testing.T) {
	t.Parallel()
	c := startChild(t, "end", pgserver.Variable+"=nonsense")
	code, said := c.end(t)
	if code == 0 || !strings.Contains(said, `"nonsense" must be one of ["url" "programs" "download" "docker"]`) {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

func TestLeftGoroutineFailsThePackage(t *testing.T) {
	t.Parallel()
	c := startChild(t, "leak", pgserver.Variable+"=url", pgtest.URLVariable+"="+pgtest.Server(t).URL())
	code, said := c.end(t)
	if code == 0 || !strings.Contains(said, "goroutines left") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

// local makes the child start a server, whatever server this process has.
func local(tb testing.TB) string {
	tb.Helper()
	_, kind, err := pgserver.LocatePrograms(tb.Context(), "", os.Stderr)
	if err != nil {
		tb.Skipf("needs server programs on this machine: %v", err)
	}
	return pgserver.Variable + "=" + string(kind)
}

func TestPanicLeavesNoServer(t *testing.T) {
	t.Parallel()
	c := startChild(t, "panic", local(t))
	dir := c.ready(t)
	if code, said := c.end(t); code == 0 || !strings.Contains(said, "on purpose") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
	eventuallyGone(t, dir)
}

func TestInterruptedTestsLeaveNoServerAndExitAccordingly(t *testing.T) {
	t.Parallel()
	for s, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(s) { // as under nohup, which the child inherits
				signal.Notify(make(chan os.Signal, 1), s)
			}
			c := startChild(t, "wait", local(t))
			dir := c.ready(t)
			must.Do(t, c.cmd.Process.Signal(s))
			if code, said := c.end(t); code != want {
				t.Errorf("exit code %d, want %d:\n%s", code, want, said)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v, want it gone when the process is", dir, err)
			}
		})
	}
}

func TestSharedServerIsUsedByManyAndLeftAsItWas(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	theirs, inUse := "pglock_test_mine", "pglock_test_1_1"
	execute(t, server.URL(), "create database "+theirs)
	execute(t, server.URL(), "create database "+inUse)
	user := must.Get(pgx.Connect(t.Context(), strings.Replace(server.URL(), "/postgres?", "/"+inUse+"?", 1)))(t)
	defer user.Close(context.WithoutCancel(t.Context()))

	env := []string{pgserver.Variable + "=url", pgtest.URLVariable + "=" + server.URL()}
	killed := startChild(t, "wait", env...)
	killed.ready(t)
	must.Do(t, killed.cmd.Process.Kill())
	killed.end(t)
	if got := databasesOf(t, server.URL()); len(got) != 4 {
		t.Errorf("databases %v, want two of the killed process among them", got)
	}
	// The server notices the end of each connection by itself. A database that somebody uses is not dropped.
	pgtest.Eventually(t, "the number and the databases of the killed process to be free", func() bool {
		return len(query(t, server.URL(), `select pid::text from pg_locks where locktype = 'advisory'
			union all select pid::text from pg_stat_activity where datname like 'pglock%' and datname <> '`+inUse+
			`'`)) == 0
	})
	waits, interrupted := startChild(t, "wait", env...), startChild(t, "wait", env...)
	waits.ready(t)
	interrupted.ready(t)
	must.Do(t, interrupted.cmd.Process.Signal(os.Interrupt))
	if code, said := interrupted.end(t); code != 130 {
		t.Errorf("exit code %d:\n%s", code, said)
	}
	if got := databasesOf(t, server.URL()); len(got) != 4 || !slices.Contains(got, theirs) ||
		!slices.Contains(got, inUse) {
		t.Errorf("databases %v, want two of the process that waits, %s and %s", got, theirs, inUse)
	}
	must.Do(t, waits.stdin.Close())
	if code, said := waits.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, said)
	}
	if got := databasesOf(t, server.URL()); !slices.Equal(got, []string{inUse, theirs}) {
		t.Errorf("databases %v, want %s and %s only", got, inUse, theirs)
	}
}

func execute(tb testing.TB, url, sql string) {
	tb.Helper()
	conn := must.Get(pgx.Connect(tb.Context(), url))(tb)
	defer conn.Close(tb.Context())
	must.Get(conn.Exec(tb.Context(), sql))(tb)
}

func databasesOf(tb testing.TB, url string) []string {
	tb.Helper()
	return query(tb, url, "select datname::text from pg_database where datname like 'pglock%' order by datname")
}

func query(tb testing.TB, url, sql string) []string {
	tb.Helper()
	conn := must.Get(pgx.Connect(tb.Context(), url))(tb)
	defer conn.Close(tb.Context())
	rows, _ := conn.Query(tb.Context(), sql)
	values := must.Get(pgx.CollectRows(rows, pgx.RowTo[string]))(tb)
	return values
}
