//go:build unix

package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the one that run was started from. The command has it while run is in its foreground.
type terminal struct {
	file  int
	group int // of the command, 0 where it has not got it
}

// openTerminal finds the terminal at standard input. In a pipeline there is none for the command: its other programs
// need it where it is.
func openTerminal() *terminal {
	in := int(os.Stdin.Fd())
	if _, err := unix.IoctlGetInt(in, unix.TIOCGPGRP); err != nil {
		return nil
	}
	out, err := os.Stdout.Stat()
	if err == nil && out.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
		return nil
	}
	return &terminal{file: in}
}

// give puts the command's process group into the foreground, if this process's own group is there, or the command's. In
// the background the terminal belongs to somebody else, such as the shell.
func (t *terminal) give(group int) bool {
	if t == nil {
		return false
	}
	front, err := unix.IoctlGetInt(t.file, unix.TIOCGPGRP)
	if err != nil || front != unix.Getpgrp() && front != group {
		return false
	}
	signal.Ignore(syscall.SIGTTOU) // or take back would stop this process, which is in the background now
	if unix.IoctlSetPointerInt(t.file, unix.TIOCSPGRP, group) != nil {
		return false
	}
	t.group = group
	return true
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

// stopped is for a command that was stopped: by Ctrl-Z, or because it needs the terminal and has not got it.
func (r *runner) stopped(s syscall.Signal) {
	switch {
	case s == syscall.SIGTSTP:
		r.terminal.takeBack()
		r.suspend()
	case s != syscall.SIGTTIN && s != syscall.SIGTTOU:
	case r.terminal == nil && !r.stuck:
		r.stuck = true
		r.note("COMMAND was stopped because it needs the terminal; the lock stays held")
	case r.terminal != nil:
		if r.terminal.give(r.pid) {
			r.group.Signal(syscall.SIGCONT)
		} else {
			r.suspend() // in the background, until the shell brings it to the front
		}
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
	r.terminal.give(r.pid)
	r.group.Signal(syscall.SIGCONT)
}
