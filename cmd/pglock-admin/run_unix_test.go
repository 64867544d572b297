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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// errandProcess is a pglock-admin run, as a process of its own.
type errandProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	output *os.File
	stdout *bufio.Reader // of output
	stderr messages
	code   chan int // once, when it has ended
}

// messages may be read while they come in.
type messages struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (m *messages) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.Write(b)
}

func (m *messages) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.String()
}

// running starts pglock-admin run with these arguments. It is killed when the test ends.
func running(t *testing.T, url string, args ...string) *errandProcess {
	t.Helper()
	p := prepared(t, url, args...)
	p.start(t)
	return p
}

func prepared(t *testing.T, url string, args ...string) *errandProcess {
	t.Helper()
	p := &errandProcess{cmd: program(context.WithoutCancel(t.Context()), t, append([]string{"run"}, args...)...),
		code: make(chan int, 1)}
	p.cmd.Env = append(p.cmd.Env, "DATABASE_URL="+url)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = &p.stderr
	return p
}

func (p *errandProcess) start(t *testing.T) {
	t.Helper()
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, outEnd, err := os.Pipe() // Wait does not close it: what is written after run's end counts too
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.output, p.stdout = outEnd, out, bufio.NewReader(out)
	must.Do(t, p.cmd.Start())
	_ = outEnd.Close()
	t.Cleanup(func() { _ = out.Close() })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.cmd.Wait()
		p.code <- p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-ended
	})
}

// says reads the next line of the command's output, which must be this one.
func (p *errandProcess) says(t *testing.T, want string) {
	t.Helper()
	if line := p.line(t); line != want {
		t.Fatalf("the command says %q, want %q", line, want)
	}
}

func (p *errandProcess) line(t *testing.T) string {
	t.Helper()
	_ = p.output.SetReadDeadline(time.Now().Add(patience)) // a pipe has one
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("the command says no more than %q: %v: %s", line, err, p.stderr.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// number reads a line that is a number, such as a process ID.
func (p *errandProcess) number(t *testing.T) int {
	t.Helper()
	n := must.Get(strconv.Atoi(p.line(t)))(t)
	return n
}

func (p *errandProcess) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	must.Do(t, p.cmd.Process.Signal(s))
}

// GoesOn lets a command that reads a line from its standard input read one.
func (p *errandProcess) goesOn(t *testing.T) {
	t.Helper()
	must.Get(io.WriteString(p.stdin, "go\n"))(t)
}

// ends waits for the end, and gives what the command has written since.
func (p *errandProcess) ends(t *testing.T, code int, texts ...string) string {
	t.Helper()
	_ = p.output.SetReadDeadline(time.Now().Add(patience))
	out, err := io.ReadAll(p.stdout) // its end comes when everybody who has it is gone
	if err != nil {
		t.Fatalf("somebody still has the output of run: %v", err)
	}
	select {
	case got := <-p.code:
		answer{got, string(out), p.stderr.String()}.want(t, code, texts...)
	case <-time.After(patience):
		t.Fatalf("run does not end: %s", p.stderr.String())
	}
	return string(out)
}

// gone reports whether a process has ended; one that nobody has waited for has, too.
func gone(pid int) bool {
	if stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil {
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
	}
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// stateOfProcess is the letter that ps shows: T for one that was stopped. It is "" for one that is gone.
func stateOfProcess(pid int) string {
	if stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil {
		_, rest, _ := strings.Cut(string(stat), ") ")
		return rest[:min(len(rest), 1)]
	}
	out, _ := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output() // it may have ended
	return strings.TrimSpace(string(out))
}

// queued waits until so many wait for the lock.
func queued(t *testing.T, db *pgtest.DB, name string, n int) {
	t.Helper()
	pgtest.Eventually(t, strconv.Itoa(n)+" wait for the lock", func() bool {
		return ask[int](t, db, "SELECT count(*) FROM pglock.list_waiters($1)", name) == n
	})
}

// wantGone is for processes whose output has ended: the kernel closes the files of a process a moment before its end.
func wantGone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		for deadline := time.Now().Add(patience); !gone(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("process %d has outlived run", pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
		}
	}
}

// sh is a command of the shell.
func sh(script string) []string { return []string{"--", "sh", "-c", script} }

// line makes a command line of run.
func line(flags string, command []string) []string { return append(strings.Fields(flags), command...) }

func TestRunHasTheExitCodeOfItsCommand(t *testing.T) {
	db := pgtest.Parallel(t)
	folder := t.TempDir()
	plain := folder + "/plain"
	must.Do(t, os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600))
	nothing := folder + "/nothing"
	must.Do(t, os.WriteFile(nothing, []byte("\x00\x01"), 0o700))
	for name, c := range map[string]struct {
		command []string
		code    int
		says    string
	}{
		"success":      {sh("exit 0"), 0, ""},
		"failure":      {sh("exit 3"), 3, ""},
		"a large code": {sh("exit 255"), 255, ""},
		"killed":       {sh("kill -KILL $$"), 128 + 9, ""},
		"terminated":   {sh("kill -TERM $$"), 128 + 15, ""},
		"not found": {[]string{"--", "no-such-command-here"}, run.ExitNoCommand, "no-such-command-here was not " +
			"found"},
		"no such path":   {[]string{"--", folder + "/absent"}, run.ExitNoCommand, "was not found"},
		"not executable": {[]string{"--", plain}, run.ExitCannotExec, "cannot be executed: permission denied"},
		"a folder":       {[]string{"--", folder}, run.ExitCannotExec, "cannot be executed: is a directory"},
		"no program":     {[]string{"--", nothing}, run.ExitCannotExec, "cannot be executed: exec format error"},
	} {
		if !pgtest.Among(name, "success", "failure", "killed", "not found", "not executable", "no program") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := running(t, db.URL(), line("a --try", c.command)...)
			p.ends(t, c.code, c.says)
			if c.says == "" && p.stderr.String() != "" {
				t.Errorf("run has something to say: %s", p.stderr.String())
			}
		})
	}
	in(t, db.URL(), "list").want(t, cli.ExitOK, "no lock is held")
}
