//go:build unix

package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/tier"
)

// ownerVariable makes this test binary a process that owns a server and ends in the way the variable says.
const ownerVariable = "PGLOCK_PGSERVER_TEST_OWNER"

func TestMain(m *testing.M) {
	if end := os.Getenv(ownerVariable); end != "" {
		actAsOwner(end)
	}
	if err := UnsetPG(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if says := tier.Choose(); says != "" {
		fmt.Fprintln(os.Stderr, "pgserver.test:", says)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// actAsOwner starts a server, tells of it on standard output, and ends.
func actAsOwner(end string) {
	programs, err := pgprograms.Find(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s, err := Start(context.Background(), Options{Programs: programs, InMemory: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if end == "after kill" {
		if err := s.Kill(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fmt.Println(s.PID(), s.DataDir())
	_, _ = io.ReadAll(os.Stdin)
	if end == "panic" {
		panic("on purpose")
	}
	os.Exit(0)
}

func installed(tb testing.TB) pgprograms.Programs {
	tb.Helper()
	p, _, err := LocatePrograms(tb.Context(), "", os.Stderr)
	if err != nil {
		tb.Fatalf("these tests need server programs on this machine: %v", err)
	}
	return p
}

func started(tb testing.TB, settings map[string]string) *Server {
	tb.Helper()
	s := must.Get(Start(tb.Context(), Options{Programs: installed(tb), Settings: settings, InMemory: true}))(tb)
	tb.Cleanup(func() {
		must.Note(tb, s.Stop())
	})
	return s
}

func connected(tb testing.TB, s *Server) *pgx.Conn {
	tb.Helper()
	conn := must.Get(pgx.Connect(tb.Context(), s.URL()))(tb)
	tb.Cleanup(func() { _ = conn.Close(context.WithoutCancel(tb.Context())) })
	return conn
}

func ask[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	tb.Helper()
	var answer T
	if err := conn.QueryRow(tb.Context(), sql, args...).Scan(&answer); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// eventually waits for something that sends no signal, such as the end of a process that is not a child of this one.
func eventually(tb testing.TB, within time.Duration, what string, is func() bool) {
	tb.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatalf("not within %v: %s", within, what)
		}
	}
}

func running(tb testing.TB, pid int) bool {
	tb.Helper()
	all := must.Get(parents())(tb)
	_, is := all[pid]
	return is
}

func exists(tb testing.TB, path string) bool {
	tb.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
	return err == nil
}

func TestRestartIsANewServerAndStopLeavesNeitherProcessNorFolder(t *testing.T) {
	t.Parallel()
	s := started(t, nil)
	before := ask[time.Time](t, connected(t, s), "select pg_postmaster_start_time()")
	must.Do(t, s.Restart(t.Context()))
	if after := ask[time.Time](t, connected(t, s), "select pg_postmaster_start_time()"); !after.After(before) {
		t.Errorf("started %v, before the restart %v", after, before)
	}
	pid, dir := s.PID(), filepath.Dir(s.DataDir())
	if !running(t, pid) || !exists(t, dir) {
		t.Fatalf("process %d and folder %s should be there", pid, dir)
	}
	for range 2 {
		must.Do(t, s.Stop())
	}
	if running(t, pid) {
		t.Errorf("process %d is still there", pid)
	}
	if exists(t, dir) {
		t.Errorf("folder %s is still there", dir)
	}
	if err := s.Restart(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("Restart after Stop: %v, want ErrStopped", err)
	}
	if err := s.Kill(); !errors.Is(err, ErrStopped) {
		t.Errorf("Kill after Stop: %v, want ErrStopped", err)
	}
}

func TestKillEndsEveryProcessAndRestartKeepsDataAndURLAndStopLeavesNothing(t *testing.T) {
	t.Parallel()
	s := started(t, nil)
	conn := connected(t, s)
	must.Get(conn.Exec(t.Context(), "create table kept as select 42 as answer"))(t)
	busy := connected(t, s)
	slept := must.Go(func() error {
		// It computes without ever waiting, so it would not notice the end of the postmaster for long.
		_, err := busy.Exec(t.Context(), "select count(*) from generate_series(1, 100000000000)")
		return err
	})
	eventually(t, 20*time.Second, "the busy connection runs", func() bool {
		return ask[bool](t, conn, "select exists (select from pg_stat_activity where query like '%100000000000)' and "+
			"pid <> pg_backend_pid())")
	})
	children := must.Get(ChildrenOf(s.PID()))(t)
	if len(children) < 3 {
		t.Fatalf("the server has %d children only", len(children))
	}
	pid, url := s.PID(), s.URL()
	must.Do(t, s.Kill())
	for _, pid := range append(children, pid) {
		if running(t, pid) {
			t.Errorf("process %d is still there", pid)
		}
	}
	if err := <-slept; err == nil {
		t.Error("a statement outlived the server")
	}
	must.Do(t, s.Restart(t.Context()))
	if s.URL() != url {
		t.Error("the URL has changed")
	}
	if s.PID() == pid {
		t.Error("the process has not changed")
	}
	if got := ask[int](t, connected(t, s), "select answer from kept"); got != 42 {
		t.Errorf("answer %d, want 42", got)
	}
	segment := segmentOf(t, s.DataDir())
	must.Do(t, errors.Join(s.Kill(), s.Stop()))
	if segment != "" && slices.Contains(segments(), segment) {
		t.Errorf("shared memory %s is still there", segment)
	}
}

func TestStopEndsAFrozenServer(t *testing.T) {
	t.Parallel()
	s := started(t, nil)
	must.Do(t, syscall.Kill(s.PID(), syscall.SIGSTOP))
	must.Do(t, s.Stop())
	if running(t, s.PID()) {
		t.Error("the server is still there")
	}
}

func TestNothingIsLeftOfAServerWhoseOwnerDies(t *testing.T) {
	t.Parallel()
	ends := []string{"killed", "after kill", "frozen", "panic"}
	if !tier.EveryTest {
		ends = ends[:1]
	}
	for _, end := range ends {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), ownerVariable+"="+end)
			stdin := must.Get(cmd.StdinPipe())(t)
			stdout := must.Get(cmd.StdoutPipe())(t)
			must.Do(t, cmd.Start())
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				t.Fatalf("the owner says nothing: %v", errors.Join(err, cmd.Wait()))
			}
			first, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
			pid, err := strconv.Atoi(first)
			if err != nil {
				t.Fatal(err)
			}
			if end != "after kill" && !running(t, pid) {
				t.Errorf("the server is not there to begin with")
			}
			segment := segmentOf(t, dir)
			switch end {
			case "frozen":
				err = errors.Join(syscall.Kill(pid, syscall.SIGSTOP), cmd.Process.Kill())
			case "panic":
				err = stdin.Close()
			default:
				err = cmd.Process.Kill()
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			eventually(t, 20*time.Second, "the server ends", func() bool { return !running(t, pid) })
			eventually(t, 20*time.Second, "the folder goes", func() bool { return !exists(t, filepath.Dir(dir)) })
			// The system removes it with the last process that uses it.
			eventually(t, 20*time.Second, "the shared memory goes", func() bool {
				return segment == "" || !slices.Contains(segments(), segment)
			})
		})
	}
}

// segmentOf is the id of the server's shared memory, which is the second
// number of the seventh line of its lock file.
func segmentOf(tb testing.TB, dir string) string {
	tb.Helper()
	content := must.Get(os.ReadFile(filepath.Join(dir, "postmaster.pid")))(tb)
	lines := strings.Split(string(content), "\n")
	if len(lines) < 7 || len(strings.Fields(lines[6])) != 2 {
		return ""
	}
	return strings.Fields(lines[6])[1]
}

// segments are the ids of all shared memory, on systems that list it.
func segments() []string {
	content, _ := os.ReadFile("/proc/sysvipc/shm")
	var ids []string
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			ids = append(ids, fields[1])
		}
	}
	return ids
}

func TestServerIsPrivateAndHasTheSettings(t *testing.T) {
	t.Parallel()
	s := started(t, map[string]string{
		"application_name": `it's a \ test`,
		"Max_Connections":  "33",
		"listen_addresses": "*",
	})
	group := must.Get(syscall.Getpgid(s.PID()))(t)
	if group != s.PID() {
		t.Errorf("the server is in process group %d, want its own, %d", group, s.PID())
	}
	config := must.Get(pgx.ParseConfig(s.URL()))(t)
	if d := s.Description(); strings.Contains(d, config.Password) || !strings.HasPrefix(d, "PostgreSQL ") {
		t.Errorf("description %q", d)
	}
	config.Password = "wrong"
	if conn, err := pgx.ConnectConfig(t.Context(), config); err == nil {
		_ = conn.Close(t.Context())
		t.Error("the server takes a wrong password")
	}
	conn := connected(t, s)
	for name, want := range map[string]string{
		"application_name": `it's a \ test`,
		"max_connections":  "33",
		"fsync":            "off",
		"listen_addresses": "127.0.0.1",
		"server_encoding":  "UTF8",
		"TimeZone":         "UTC",
	} {
		if got := ask[string](t, conn, "select current_setting($1)", name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestFailedStartTellsTheLogAndLeavesNothing(t *testing.T) {
	o := Options{Programs: installed(t), InMemory: true, Settings: map[string]string{"no_such_setting": "1"}}
	before := children(t)
	_, err := Start(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("error %v, want what the server logged", err)
	}
	if after := children(t); after != before {
		t.Errorf("%d children, before the start %d", after, before)
	}
}

func TestEndedContextEndsTheStartAndLeavesNothing(t *testing.T) {
	o := Options{Programs: installed(t), InMemory: true}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := children(t)
	if _, err := Start(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if after := children(t); after != before {
		t.Errorf("%d children, before the start %d", after, before)
	}
}

// children counts this process's server processes, including their minders, which end after removing the folders.
func children(tb testing.TB) int {
	tb.Helper()
	all := must.Get(ChildrenOf(os.Getpid()))(tb)
	return len(all)
}

func TestTakenPortIsToldApartFromOtherFailures(t *testing.T) {
	t.Parallel()
	somebody := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer somebody.Close()
	s := started(t, nil)
	must.Do(t, s.Kill())
	s.port = somebody.Addr().(*net.TCPAddr).Port
	if err := s.startPostmaster(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("error %v, want errPortTaken", err)
	}
	if err := s.startOnFreePort(t.Context()); err != nil {
		t.Errorf("on another port: %v", err)
	}
}
