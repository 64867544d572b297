package minder

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

// The program can kill a group only if it knows its number. So a command must not begin before the program can know
// it: what the command has started by then would outlive a minder that is killed.
func TestACommandBeginsWhenTheProgramCanKnowItsGroup(t *testing.T) {
	t.Parallel()
	ends := must.Get(socketpair())(t)
	program := os.NewFile(uintptr(ends[0]), "minder") // nobody reads from it
	t.Cleanup(func() { _ = program.Close() })
	fill(t, ends[1])
	begun := filepath.Join(t.TempDir(), "begun")
	minder := must.Get(Command{
		Minder: []string{mindful}, Path: "/bin/sh", Args: []string{"sh", "-c", `: > "$0"`, begun}, Env: os.Environ(),
	}.start(ends[1]))(t)
	send(program, order{Trust: spanUntil(time.Now().Add(time.Hour))})
	gate := childOf(t, minder.Pid)
	for range 20 { // it has time enough to begin
		time.Sleep(5 * time.Millisecond)
		if _, err := os.Stat(begun); err == nil {
			t.Error("the command has begun, and the minder has not said so")
			break
		}
	}
	_ = minder.Kill()
	_, _ = minder.Wait()
	for began := time.Now(); !ended(gate); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the gate outlives the minder")
		}
	}
	if _, err := os.Stat(begun); err == nil {
		t.Error("the command has begun, and the minder was killed before it said so")
	}
}

// ended reports whether a process has ended. In a container there may be nobody who waits for an orphan.
func ended(pid int) bool {
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // it may be gone
	return len(stat) == 0 || bytes.Contains(stat, []byte(") Z "))
}

// fill fills a socket, so that whoever writes to it waits.
func fill(t *testing.T, socket int) {
	t.Helper()
	for {
		switch _, err := unix.SendmsgN(socket, make([]byte, 1), nil, nil, unix.MSG_DONTWAIT); {
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil:
			t.Fatal(err)
		}
	}
}

// childOf waits until a process has a child.
func childOf(t *testing.T, parent int) (child int) {
	t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		children := must.Get(pgserver.ChildrenOf(parent))(t)
		if len(children) > 0 {
			return children[0]
		}
	}
	t.Fatal("the minder has started nothing")
	return 0
}
