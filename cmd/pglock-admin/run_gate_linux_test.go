package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

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
	if err := gate.Start(); err != nil {
		t.Fatal(err)
	}
	var before string
	pgtest.Eventually(t, "the gate at rest", func() bool {
		now := stateOf(t, gate.Process.Pid)
		rests := now == before && strings.HasPrefix(now, "S ")
		before = now
		return rests
	})
	if err := gate.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
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
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	return strings.Join([]string{fields[0], fields[11], fields[12]}, " ")
}
