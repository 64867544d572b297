//go:build unix && !linux

package main

import "syscall"

// workerAttributes put a worker into a process group of its own, so that Ctrl-C at the terminal reaches the laboratory alone,
// which then ends its workers. Should the laboratory be killed, that group is orphaned, which ends a stopped worker by SIGHUP,
// and a running one sees its standard input end.
func workerAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
