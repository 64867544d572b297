//go:build unix

package pgserver

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

//go:embed minder.sh
var minderScript string

// A minder is a process that outlives this one for as long as it takes to end
// the server and to remove its folder. It is in a session of its own, so that
// neither a signal from the terminal nor the end of it reaches the minder.
type minder struct {
	pipe *os.File // the only write end; closed on exec, so no child keeps it open
	done chan struct{}
}

func startMinder(f folder) (*minder, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pgserver: pipe to the minder: %w", err)
	}
	defer read.Close()
	cmd := exec.Command("/bin/sh", "-c", minderScript, "pglock-minder", string(f))
	cmd.Stdin = read
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("pgserver: start the minder: %w", err)
	}
	m := &minder{pipe: write, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		_ = cmd.Wait() // its verdict is whether the folder is gone
	}()
	return m, nil
}

// mind tells the minder the process that now works in the folder.
func (m *minder) mind(pid int) error {
	if _, err := fmt.Fprintln(m.pipe, pid); err != nil {
		return fmt.Errorf("pgserver: tell the minder: %w", err)
	}
	return nil
}

// minderPatience is longer than the script takes at its slowest.
const minderPatience = 30 * time.Second

// finish lets the minder do its work and waits for it.
func (m *minder) finish() error {
	err := m.pipe.Close()
	late := time.NewTimer(minderPatience)
	defer late.Stop()
	select {
	case <-m.done:
		return err
	case <-late.C:
		return fmt.Errorf("pgserver: the minder has not ended within %v", minderPatience)
	}
}
