package minder

import "golang.org/x/sys/unix"

// dieWithParent makes the kernel kill this thread, and the program that it becomes, when somebody kills the minder; but
// not what that program has started. (The kernel sends the signal when the thread that started this process ends. Go
// ends a thread only if a locked goroutine on it ends, and the minder has none.)
func dieWithParent() { _ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) }

// adoptOrphans makes orphaned processes children of the minder, which waits for them. In a container there may be
// nobody else who waits, and a process that nobody waits for stays in its group.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // without it, init adopts them
}
