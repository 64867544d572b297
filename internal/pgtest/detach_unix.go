//go:build unix

package pgtest

import (
	"os/exec"
	"syscall"
)

// detach keeps signals from the terminal away from cmd.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
