//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the one that run was started from, while run is in its foreground. The command gets it there.
type terminal struct {
	file  int
	group int // of the command, 0 where it has not got it
}

// openTerminal finds the terminal. In a pipeline there is none for the command: its other programs need it where it is.
func openTerminal() *terminal {
	in, out := int(os.Stdin.Fd()), int(os.Stdout.Fd())
	front, err := unix.IoctlGetInt(in, unix.TIOCGPGRP)
	if err != nil || front != unix.Getpgrp() {
		return nil
	}
	if _, err := unix.IoctlGetInt(out, unix.TIOCGPGRP); err != nil {
		return nil
	}
	return &terminal{file: in}
}

// give puts a process group into the foreground.
func (t *terminal) give(group int) {
	if t == nil {
		return
	}
	signal.Ignore(syscall.SIGTTOU) // or take back would stop this process, which is in the background now
	if unix.IoctlSetPointerInt(t.file, unix.TIOCSPGRP, group) == nil {
		t.group = group
	}
}

// takeBack puts this process's own group into the foreground, if the command's is there.
func (t *terminal) takeBack() {
	if t == nil || t.group == 0 {
		return
	}
	if front, err := unix.IoctlGetInt(t.file, unix.TIOCGPGRP); err == nil && front == t.group {
		_ = unix.IoctlSetPointerInt(t.file, unix.TIOCSPGRP, unix.Getpgrp()) // nothing to do about it
	}
}

// stopped is for a command that was stopped: by the terminal, before it was in the foreground or by Ctrl-Z.
func (r *runner) stopped(s syscall.Signal) {
	switch {
	case s == syscall.SIGTSTP:
		r.terminal.takeBack()
		r.suspend()
	case r.terminal != nil && (s == syscall.SIGTTIN || s == syscall.SIGTTOU):
		r.terminal.give(r.pid)
		r.group.Signal(syscall.SIGCONT)
	}
}

// suspend stops this process and what is with it in its group, such as a script, as Ctrl-Z does. It continues the
// command when it is continued itself. Nothing is renewed meanwhile: the minder ends the command before the lease does.
func (r *runner) suspend() {
	session, err := unix.Getsid(0)
	if err == nil && session != unix.Getpgrp() { // a shell with job control can continue this process
		continued := make(chan os.Signal, 1)
		signal.Notify(continued, syscall.SIGCONT)
		_ = syscall.Kill(0, syscall.SIGTSTP) // this process hears it, too, and does not stop
		<-r.suspends
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-continued
		signal.Stop(continued)
	}
	if r.terminal != nil {
		if front, err := unix.IoctlGetInt(r.terminal.file, unix.TIOCGPGRP); err == nil && front == unix.Getpgrp() {
			r.terminal.give(r.pid)
		}
	}
	r.group.Signal(syscall.SIGCONT)
}
