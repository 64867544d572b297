//go:build unix

package pgserver

import (
	"bufio"
	"io"
	"os/exec"
	"syscall"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// A process that is in the middle of starting a child when it is told to stand still still starts it. Such a child of a
// postmaster would keep the shared memory, and the next start would fail.
func TestKillLeavesNoChildThatComesMeanwhile(t *testing.T) {
	t.Parallel()
	for range 20 {
		cmd := exec.Command("sh", "-c", "while :; do sleep 5 & echo; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out := must.Get(cmd.StdoutPipe())(t)
		must.Do(t, cmd.Start())
		must.Get(io.ReadFull(bufio.NewReader(out), make([]byte, 4)))(t)
		pm := &postmaster{pid: cmd.Process.Pid, done: make(chan struct{})}
		go func() {
			defer close(pm.done)
			_ = cmd.Wait() // it is killed
		}()
		must.Note(t, (&process{}).kill(pm))
		left := must.Get(parents())(t)
		for pid := range left {
			if group, _ := syscall.Getpgid(pid); group == pm.pid {
				_ = syscall.Kill(-pm.pid, syscall.SIGKILL)
				t.Fatalf("process %d is left", pid)
			}
		}
	}
}
