package minder

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// commandAttributes make the kernel kill the command when somebody kills the minder. It does not reach what the command
// has started. (The signal comes when the thread that started the command ends; Go ends a thread only with a locked
// goroutine on it, and there is none here.)
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes processes whose parent has ended children of the minder, which waits for them. In a container
// there may be nobody else who does, and a process that nobody waits for stays in its group.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // without it, init adopts them
}
