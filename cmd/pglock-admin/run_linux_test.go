package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// session is a shell with job control at a terminal.
type session struct {
	t        *testing.T
	terminal *os.File
	seen     string // what was read and not yet waited for
	cmd      *exec.Cmd
}

// pseudoTerminal makes a terminal. Both ends are files with deadlines; the master is closed with the test.
func pseudoTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	var number int
	raw, err := master.SyscallConn() // Fd would take the deadlines away
	if err != nil {
		t.Fatal(err)
	}
	controlErr := raw.Control(func(fd uintptr) {
		if number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
	})
	if err == nil {
		err = controlErr
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	return master, slave
}

// atTerminal lets a shell run a script in which pglock-admin is this program.
func atTerminal(t *testing.T, url, script string) *session {
	t.Helper()
	master, slave := pseudoTerminal(t)
	defer slave.Close()
	file := must.Get(os.Executable())(t)
	s := &session{t: t, terminal: master, cmd: exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c",
		"set -m\n"+script)}
	s.cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+url, "RUN="+file)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, slave, slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must.Do(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	return s
}

// shows waits until the terminal shows a text.
func (s *session) shows(text string) {
	s.t.Helper()
	_ = s.terminal.SetReadDeadline(time.Now().Add(patience)) // a terminal has one
	for buffer := make([]byte, 1024); ; {
		if _, after, found := strings.Cut(s.seen, text); found {
			s.seen = after
			return
		}
		n, err := s.terminal.Read(buffer)
		if err != nil {
			s.t.Fatalf("the terminal does not show %q: %q, %v", text, s.seen, err)
		}
		s.seen += string(buffer[:n])
	}
}

func (s *session) types(text string) {
	s.t.Helper()
	must.Get(s.terminal.WriteString(text))(s.t)
}

func TestACommandAtATerminalReadsIsInterruptedAndStopped(t *testing.T) {
	db := pgtest.Parallel(t)
	// A command that has read a line is in the foreground.
	s := atTerminal(t, db.URL(), `
		"$RUN" run a -- sh -c 'read line; echo "it reads $line"'; echo "first $?"
		"$RUN" run a -- sh -c 'read line; echo "it reads $line"; read line'; echo "second $?"
		"$RUN" run a -- sh -c 'read line; echo "it reads $line"; read line; echo "then $line"'; echo "stopped $?"
		fg; echo "third $?"
		"$RUN" run a --ttl 6s -- sh -c 'read line; echo "it reads $line"; read line'; echo "stopped $?"
		read line
		fg; echo "fourth $?"
		"$RUN" run a -- sh -c 'read line; echo "it reads $line"; read line; echo "then $line"'; echo "stopped $?"
		bg; sleep 0.5; echo "in the background"; read line; echo "the shell reads $line"
		fg; echo "fifth $?"
		"$RUN" run a -- sh -c 'read line; echo "it reads $line"' & read line; echo "the shell reads $line"
		fg; echo "sixth $?"`)
	s.types("one\n")
	s.shows("it reads one")
	s.shows("first 0")
	s.types("two\n")
	s.shows("it reads two")
	s.types("\x03") // Ctrl-C
	s.shows("second 130")
	s.types("three\n")
	s.shows("it reads three")
	s.types("\x1a") // Ctrl-Z
	s.shows("stopped ")
	s.types("four\n")
	s.shows("then four")
	s.shows("third 0")
	s.types("five\n")
	s.shows("it reads five")
	s.types("\x1a")
	s.shows("stopped ")
	conn := db.Conn(t)
	pgtest.Eventually(t, "the lease has ended", func() (over bool) {
		must.Do(t, conn.QueryRow(t.Context(), "SELECT NOT held FROM pglock.get_lock('a')").Scan(&over))
		return over
	})
	s.types("\n")
	s.shows("fourth 119")
	s.types("six\n")
	s.shows("it reads six")
	s.types("\x1a")
	s.shows("stopped ")
	s.shows("in the background")
	s.types("seven\n")
	s.shows("the shell reads seven") // the command in the background leaves the terminal to the shell
	s.types("eight\n")
	s.shows("then eight")
	s.shows("fifth 0")
	s.types("nine\n")
	s.shows("the shell reads nine")
	s.types("ten\n")
	s.shows("it reads ten")
	s.shows("sixth 0")
}

func TestACommandReadsTheTerminalUnlessItIsInAPipeline(t *testing.T) {
	db := pgtest.Parallel(t)
	s := atTerminal(t, db.URL(), `
		"$RUN" run a -- sh -c 'read line; echo "it reads $line" >&2' > /dev/null; echo "first $?"
		"$RUN" run a -- sh -c 'read line; echo "it reads $line" >&2' | (trap '' INT; cat); echo "second"`)
	s.types("one\n")
	s.shows("it reads one")
	s.shows("first 0")
	s.shows("COMMAND was stopped because it needs the terminal; the lock stays held")
	s.types("\x03") // Ctrl-C
	s.shows("second")
}

// The kernel kills the command itself when nobody else can. What the command has started goes on.
func TestTheCommandDiesWithBothRunAndItsMinder(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), line("a", sh(`trap '' TERM; echo $PPID; echo $$; `+idle))...)
	minder, command := p.number(t), p.number(t)
	p.signal(t, syscall.SIGSTOP)
	awaitStopped(t, p.cmd.Process.Pid)
	must.Do(t, syscall.Kill(minder, syscall.SIGKILL))
	p.signal(t, syscall.SIGKILL)
	p.ends(t, -1)
	wantGone(t, command)
}

// In a container there may be nobody who waits for a process whose parent has ended. Here that is this test.
func TestOrphansOfTheCommandAreCollected(t *testing.T) {
	must.Do(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	}()
	db := pgtest.Database(t)
	p := running(t, db.URL(), line("a", sh(`(sleep 1000 & echo $!)`))...)
	orphan := p.number(t)
	p.ends(t, 0, "COMMAND has ended and left processes running")
	wantGone(t, orphan)
}

// Who has left the group, and waits for nobody, may have a child in it. The child has ended, and stays in the group.
func TestAProcessOfTheGroupForWhichNobodyWaitsKeepsNoLock(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), line("a --kill-after 100ms",
		sh(`(sleep 1000 & exec setsid sleep 1000) < /dev/null > /dev/null 2>&1 & echo $!; read line; exit 5`))...)
	left := p.number(t)
	t.Cleanup(func() { _ = syscall.Kill(left, syscall.SIGKILL) })
	pgtest.Eventually(t, "the one that leaves the group", func() bool {
		group, err := syscall.Getpgid(left)
		return err == nil && group == left
	})
	p.goesOn(t)
	p.ends(t, 5, "COMMAND has ended and left processes running")
	if gone(left) {
		t.Error("the one that has left has ended")
	}
}
