package demo

import "syscall"

// workerAttributes put a worker into its own process group, so that Ctrl-C at the terminal reaches only the
// storyteller, which then ends its workers. If the storyteller is killed, the kernel kills the worker, even a stopped
// one. (The signal comes when the thread that started the worker ends. Go ends a thread only with a locked goroutine
// on it, and there is none here.)
func workerAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
