//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// program prepares this test binary to run as pglock-admin.
func program(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	file := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.WaitDelay = patience // whoever outlives it may hold its output
	return cmd
}

// performance is a demo that runs in a process of its own.
type performance struct {
	cmd    *exec.Cmd
	mark   string          // in the environment of every process of it
	temp   string          // where its folders are, but those of its server
	server map[string]bool // folders of its server, as far as they have been seen
	stderr bytes.Buffer
	pipe   io.ReadCloser
	stdout *bufio.Reader
}

// perform starts the demo. No process and no folder of it may be left when the test ends.
func perform(t *testing.T, args ...string) *performance {
	t.Helper()
	cmd := program(context.WithoutCancel(t.Context()), t, append([]string{"demo", "--plain"}, args...)...)
	p := &performance{cmd: cmd, temp: t.TempDir(), server: make(map[string]bool)}
	p.mark = "DEMO_TEST_MARK=" + p.temp
	p.cmd.Env = append(p.cmd.Env, p.mark, "TMPDIR="+p.temp, "DATABASE_URL=postgres://nobody@127.0.0.1:1/nowhere")
	if slices.Contains(args, "--database-url") {
		p.cmd.Env = append(p.cmd.Env, pgserver.Variable+"="+string(pgserver.KindURL)) // this server, and no other
	} else {
		p.cmd.Env = append(p.cmd.Env, "PGSERVICE=none", "PGOPTIONS=-c role=nobody_here")
	}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.pipe, err = p.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(p.pipe)
	must.Do(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

// readTo reads the output up to the line that holds text, or to its end.
func (p *performance) readTo(t *testing.T, text string) string {
	t.Helper()
	var all strings.Builder
	for {
		line, err := p.stdout.ReadString('\n')
		all.WriteString(line)
		if text != "" && strings.Contains(line, text) {
			return all.String()
		}
		if err != nil {
			if text != "" {
				t.Fatalf("the demo ended before %q:\n%s%s", text, all.String(), p.stderr.String())
			}
			return all.String()
		}
	}
}

func (p *performance) wait() int {
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// dataFolder is in the arguments of a server.
var dataFolder = regexp.MustCompile("\x00-D\x00([^\x00]+)\x00")

// leftovers are the processes and files of the demo that are there.
func (p *performance) leftovers(t *testing.T) (left []string) {
	t.Helper()
	entries := must.Get(os.ReadDir(p.temp))(t)
	for _, e := range entries {
		left = append(left, "file "+e.Name())
	}
	processes, err := os.ReadDir("/proc")
	if err != nil || len(processes) == 0 {
		out := must.Get(exec.Command("ps", "-A", "-ww", "-o", "pid=,args=").Output())(t)
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, p.temp) || strings.Contains(line, "demo-worker") {
				left = append(left, "process "+strings.TrimSpace(line))
			}
		}
		return left
	}
	for _, e := range processes {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ") // a stranger's, or one that has just ended
		if bytes.Contains(environ, []byte(p.mark+"\x00")) {
			args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			left = append(left, "process "+e.Name()+" "+string(bytes.ReplaceAll(args, []byte{0}, []byte{' '})))
			if found := dataFolder.FindSubmatch(args); found != nil {
				p.server[string(found[1])] = true
			}
		}
	}
	for folder := range p.server {
		if _, err := os.Lstat(folder); !errors.Is(err, os.ErrNotExist) {
			left = append(left, "folder "+folder)
		}
	}
	return left
}

func (p *performance) wantNothingLeft(t *testing.T) {
	t.Helper()
	if left := p.leftovers(t); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

// told lets the demo tell its story to the end. Where the machine is too busy for its leases, the demo says so, and
// begins anew.
func told(t *testing.T, args ...string) (p *performance, story string) {
	t.Helper()
	return toldFrom(t, func(*performance) string { return "" }, args...)
}

// toldFrom is told where the test reads the beginning of the story, each time it is told.
func toldFrom(t *testing.T, begin func(*performance) string, args ...string) (p *performance, story string) {
	t.Helper()
	for range 3 {
		p = perform(t, args...)
		story = begin(p)
		story += p.readTo(t, "")
		code := p.wait()
		if code == cli.ExitOK {
			return p, story
		}
		if !strings.Contains(p.stderr.String(), "the story did not end as it must") {
			t.Fatalf("exit code %d\n%s%s", code, story, p.stderr.String())
		}
		t.Log(p.stderr.String())
	}
	t.Fatalf("the story does not end as it must:\n%s%s", story, p.stderr.String())
	return nil, ""
}

func TestDemoTellsTheStory(t *testing.T) {
	t.Parallel()
	p, story := told(t, "--seed", "7", "--ttl", "2s", "--workers", "3")
	for _, text := range []string{
		"ACT 1, without the fence", "SIGSTOP", "SIGCONT", "DESTROYED", "WRONG",
		"ACT 2, with the fence", "lease.Valid() is false", "REFUSED by the database, SQLSTATE LK00", "right",
		"LEDGER", "accepted, too late", "refused: LK00", "TRY NEXT",
		"token 1", "token 2", "token 3",
	} {
		if !strings.Contains(story, text) {
			t.Errorf("no %q in\n%s", text, story)
		}
	}
	if strings.Contains(story, "\x1b") {
		t.Error("--plain writes escape sequences")
	}
	for line := range strings.Lines(story) {
		// names a folder
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 && !strings.HasPrefix(line, "PostgreSQL ") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	p.wantNothingLeft(t)
}

func TestDemoIsTheSameForTheSameSeed(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t) // one server less
	var ledgers []string
	for range 2 {
		_, story := told(t, "--seed", "5", "--ttl", "1s", "--database-url", db.URL())
		_, ledger, _ := strings.Cut(story, "LEDGER")
		ledgers = append(ledgers, ledger)
	}
	if ledgers[0] == "" || ledgers[0] != ledgers[1] {
		t.Errorf("two ledgers:\n%s\n%s", ledgers[0], ledgers[1])
	}
}

func TestDemoLeavesNothingWhenItIsEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		signal syscall.Signal
		at     string
		code   int
	}{
		"interrupted at the start":         {syscall.SIGINT, "pglock demo", cli.ExitInterrupted},
		"interrupted while A is stopped":   {syscall.SIGINT, "SIGSTOP", cli.ExitInterrupted},
		"terminated while B holds":         {syscall.SIGTERM, "token 2", cli.ExitInterrupted},
		"hung up in the second act":        {syscall.SIGHUP, "ACT 2", cli.ExitInterrupted},
		"killed while A is stopped":        {syscall.SIGKILL, "SIGSTOP", -1},
		"its reader gone in the first act": {0, "SIGSTOP", cli.ExitFailure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := perform(t)
			p.readTo(t, c.at)
			if left := p.leftovers(t); c.at == "SIGSTOP" &&
				// a folder, two workers, the server and its minder
				(len(left) < 5 || runtime.GOOS == "linux" && len(p.server) != 1) {
				t.Errorf("this test does not see what there is: %q", left)
			}
			if c.signal == 0 {
				must.Do(t, p.pipe.Close())
			} else {
				must.Do(t, p.cmd.Process.Signal(c.signal))
				p.readTo(t, "")
			}
			if code := p.wait(); code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, p.stderr.String())
			}
			if c.signal == syscall.SIGKILL {
				p.awaitNothingLeft(t) // what is left ends by itself, soon after
			}
			p.wantNothingLeft(t)
		})
	}
}

func (p *performance) awaitNothingLeft(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for p.leftovers(t) != nil && time.Now().Before(deadline) {
		<-tick.C
	}
}

func TestDemoInSomebodyElsesDatabaseDropsItsSchema(t *testing.T) {
	db := pgtest.Parallel(t)
	schemas := func() (n int) {
		if err := db.Conn(t).QueryRow(t.Context(),
			"SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pglock_demo%'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	p, story := toldFrom(t, func(p *performance) string {
		var begun strings.Builder
		for !strings.Contains(begun.String(), "SIGSTOP") {
			line, err := p.stdout.ReadString('\n')
			if begun.WriteString(line); err != nil {
				return begun.String() // a busy machine has ended it
			}
		}
		if n := schemas(); n != 1 {
			t.Errorf("%d schemas while it plays", n)
		}
		return begun.String()
	}, "--database-url", db.URL(), "--ttl", "2500ms")
	if first, _, _ := strings.Cut(story, "\n"); !strings.HasPrefix(first, "at ") ||
		!strings.HasSuffix(first, ", database "+db.Name()) {
		t.Errorf("it begins with %q", first)
	}
	if password := db.Conn(t).Config().Password; password != "" && strings.Contains(story, password) {
		t.Error("the story tells the password")
	}
	if !strings.Contains(story, "export DATABASE_URL=") || strings.Contains(story, "postgres://…") {
		t.Errorf("its last lines do not lead to the database:\n%s", story)
	}
	interrupted := perform(t, "--database-url", db.URL())
	interrupted.readTo(t, "SIGSTOP")
	must.Do(t, interrupted.cmd.Process.Signal(os.Interrupt))
	interrupted.readTo(t, "")
	if code := interrupted.wait(); code != cli.ExitInterrupted {
		t.Errorf("exit code %d: %s", code, interrupted.stderr.String())
	}
	if n := schemas(); n != 0 {
		t.Errorf("%d schemas are left", n)
	}
	in(t, db.URL(), "list").want(t, cli.ExitOK) // what was there is there
	p.wantNothingLeft(t)
	interrupted.wantNothingLeft(t)
}

func TestDemoLeavesRolesThatWereThereToTheirMembers(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil) // roles belong to the whole server
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	defer conn.Close(context.WithoutCancel(t.Context()))
	must.Get(conn.Exec(t.Context(), "CREATE ROLE pglock_user; CREATE ROLE pglock_admin IN ROLE pglock_user; "+
		"CREATE ROLE app IN ROLE pglock_admin"))(t)
	p := perform(t, "--database-url", server.URL())
	p.readTo(t, "ACT 1")
	must.Do(t, p.cmd.Process.Signal(os.Interrupt))
	p.readTo(t, "")
	if code := p.wait(); code != cli.ExitInterrupted {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	if members := pgtest.One[int](t, conn, "SELECT count(*) FROM pg_auth_members m JOIN pg_roles r ON "+
		"r.oid = m.roleid WHERE r.rolname LIKE 'pglock%'"); members != 2 {
		t.Errorf("%d memberships are left of 2", members)
	}
	if left := pgtest.One[int](t, conn, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pglock%'"); left != 0 {
		t.Errorf("%d schemas are left", left)
	}
	p.wantNothingLeft(t)
}

func TestDemoRefusesAServerThatTheVariableForbids(t *testing.T) {
	t.Setenv(pgserver.Variable, string(pgserver.KindPrograms))
	admin(t, "demo", "--plain", "--database-url", "postgres://me:secret@"+closedPort(t)+"/db").want(t, cli.ExitUsage,
		"--database-url does not go with "+pgserver.Variable, "try: unset "+pgserver.Variable)
}

func TestDemoNamesAnUnreachableServer(t *testing.T) {
	t.Parallel()
	addr := closedPort(t)
	p := perform(t, "--database-url", "postgres://me:secret@"+addr+"/db")
	p.readTo(t, "")
	code := p.wait()
	answer{code: code, stderr: p.stderr.String()}.want(t, cli.ExitUnreachable, addr, "try: ")
	if strings.Contains(p.stderr.String(), "secret") {
		t.Error(p.stderr.String())
	}
}

func TestWorkerEndsWithItsStandardInput(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if out, err := program(ctx, t, "demo-worker").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
