//go:build unix && !linux

package demo

import "syscall"

// workerAttributes put a worker into a process group of its own, so that Ctrl-C at the terminal reaches the storyteller
// alone, which then ends its workers. Should the storyteller be killed, that group is orphaned, which ends a stopped
// worker by SIGHUP, and a running one sees its standard input end.
func workerAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
