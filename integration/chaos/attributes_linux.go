package main

import "syscall"

// workerAttributes put a worker into a process group of its own, so that Ctrl-C at the terminal reaches the laboratory alone,
// which then ends its workers. Should the laboratory be killed, the kernel kills the worker, also a stopped one. (The signal
// comes when the thread that started the worker ends; Go ends a thread only with a locked goroutine on it, and there is none
// here.)
func workerAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
