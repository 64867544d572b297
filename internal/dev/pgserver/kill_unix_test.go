//go:build unix

package pgserver

import (
	"bufio"
	"io"
	"os/exec"
	"syscall"
	"testing"
)

// A process that is in the middle of starting a child when it is told to stand still still starts it. Such a child of a
// postmaster would keep the shared memory, and the next start would fail.
func TestKillLeavesNoChildThatComesMeanwhile(t *testing.T) {
	whole(t)
	t.Parallel()
	for range 20 {
		cmd := exec.Command("sh", "-c", "while :; do sleep 5 & echo; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(bufio.NewReader(out), make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		pm := &postmaster{pid: cmd.Process.Pid, done: make(chan struct{})}
		go func() {
			defer close(pm.done)
			_ = cmd.Wait() // it is killed
		}()
		if err := (&process{}).kill(pm); err != nil {
			t.Error(err)
		}
		left, err := parents()
		if err != nil {
			t.Fatal(err)
		}
		for pid := range left {
			if group, _ := syscall.Getpgid(pid); group == pm.pid {
				_ = syscall.Kill(-pm.pid, syscall.SIGKILL)
				t.Fatalf("process %d is left", pid)
			}
		}
	}
}
