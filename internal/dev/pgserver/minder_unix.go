//go:build unix

package pgserver

import (
	_ "embed"
	"io"
	"os/exec"
	"syscall"
)

//go:embed minder.sh
var minderScript string

// A minder is a process that outlives this one until it has ended the server and removed its folder. It has its own
// session, so that neither a signal from the terminal nor the terminal's end reaches it.
type minder struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser // takes postmasters; its only write end, closed on exec, so no child keeps it open
}

func startMinder(folder string) (*minder, error) {
	cmd := exec.Command("/bin/sh", "-c", minderScript, "pglock-minder", folder)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	return &minder{cmd, pipe}, err
}

// finish lets the minder do its work, which takes a bounded time, and waits for it. It reports whether the folder is
// gone.
func (m *minder) finish() error {
	err := m.pipe.Close()
	_ = m.cmd.Wait()
	return err
}
