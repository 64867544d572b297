package minder

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// commandAttributes make the kernel kill the command when somebody kills the minder, but not what the command has
// started. (The kernel sends the signal when the thread that started the command ends. Go ends a thread only if a
// locked goroutine on it ends, and there is none here.)
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes orphaned processes children of the minder, which waits for them. In a container there may be
// nobody else who waits, and a process that nobody waits for stays in its group.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // without it, init adopts them
}
