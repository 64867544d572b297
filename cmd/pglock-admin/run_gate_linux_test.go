package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// What becomes the command of run catches no signal before: the command would never hear of it.
func TestASignalToWhatBecomesTheCommandIsNotLost(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // the gate dies with the thread that has started it
	defer runtime.UnlockOSThread()
	var ours, its [2]*os.File
	for i := range ours {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		defer write.Close()
		ours[i], its[i] = read, write
	}
	ours[1], its[1] = its[1], ours[1] // it reports to us, and we open it
	gate := program(t.Context(), t, "run-minder", "gate", "3", "4", "/bin/sleep", "sleep", "60")
	gate.ExtraFiles = its[:]
	must.Do(t, gate.Start())
	var before string
	pgtest.Eventually(t, "the gate at rest", func() bool {
		now := stateOf(t, gate.Process.Pid)
		rests := now == before && strings.HasPrefix(now, "S ")
		before = now
		return rests
	})
	must.Do(t, gate.Process.Signal(syscall.SIGTERM))
	ended := make(chan struct{})
	go func() {
		_ = gate.Wait()
		close(ended)
	}()
	pgtest.Eventually(t, "the end of the gate", func() bool {
		_, _ = ours[1].Write([]byte{1}) // it opens, if it is there still
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if status := gate.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
		t.Errorf("it ended as %v, want by the signal", gate.ProcessState)
	}
}

// stateOf is the state of a process, and the time that it has computed.
func stateOf(t *testing.T, pid int) string {
	t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(t)
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	return strings.Join([]string{fields[0], fields[11], fields[12]}, " ")
}

// linked lets a run that is prepared start from a link to this program, in a folder that everybody may read.
func (p *errandProcess) linked(t *testing.T) (file string) {
	t.Helper()
	folder := must.Get(os.MkdirTemp("", "linked-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	file = filepath.Join(folder, "pglock-admin")
	if err := errors.Join(os.Chmod(folder, 0o755), os.Link(p.cmd.Path, file)); err != nil {
		t.Skipf("no link to this program: %v", err)
	}
	p.cmd.Path, p.cmd.Args[0] = file, file
	return file
}

func TestAProgramThatIsReplacedWhileItWaitsRunsItsCommand(t *testing.T) {
	db := pgtest.Parallel(t)
	first := running(t, db.URL(), line("a", sh("echo at work; read line"))...)
	first.says(t, "at work")
	p := prepared(t, db.URL(), line("a", sh(`cat /proc/$PPID/comm; ps -o args= -p $PPID | cut -d ' ' -f 1,2`))...)
	file := p.linked(t)
	p.start(t)
	queued(t, db, "a", 1)
	another := file + ".new"
	must.Do(t, os.WriteFile(another, []byte("#!/bin/sh\necho another\n"), 0o700))
	must.Do(t, os.Rename(another, file))
	first.goesOn(t)
	p.says(t, "pglock-admin")
	p.says(t, file+" run-minder")
	p.ends(t, 0)
	first.ends(t, 0)
}

// Of another user's process in the group run cannot know more than that it is there.
func TestTheLockIsFreeWhenTheGroupOfAKilledMinderHasEnded(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start another user's process")
	}
	db := pgtest.Parallel(t)
	p := prepared(t, db.URL(), line("a --ttl 10m", sh(`echo $PPID; echo $$; read line`))...)
	p.linked(t)
	const nobody = 65534
	p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	p.cmd.Dir = "/"
	p.start(t)
	minder, command := p.number(t), p.number(t)
	other := exec.CommandContext(t.Context(), "sleep", "600")
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: command}
	must.Do(t, other.Start())
	next := running(t, db.URL(),
		line("a", sh(fmt.Sprintf("kill -0 %d && echo overlaps; exit 0", other.Process.Pid)))...)
	queued(t, db, "a", 1)
	must.Do(t, syscall.Kill(minder, syscall.SIGKILL))
	wantGone(t, command)
	time.Sleep(time.Second) // the next would begin at once
	must.Do(t, other.Process.Kill())
	_ = other.Wait()
	p.ends(t, run.ExitRunBase+cli.ExitFailure, "the process that minds COMMAND has ended; COMMAND was killed")
	if out := next.ends(t, 0); out != "" {
		t.Error(out)
	}
}
