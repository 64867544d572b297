//go:build unix && !linux

package demo

import "syscall"

// workerAttributes put a worker into its own process group, so that Ctrl-C at the terminal reaches only the
// storyteller, which then ends its workers. If the storyteller is killed, that group is orphaned: a stopped worker
// then gets SIGHUP, and a running one sees its standard input end.
func workerAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
