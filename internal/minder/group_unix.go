//go:build unix

package minder

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is what a minder is to run. Standard input, output and error, and what else the program was given, are passed
// on.
type Command struct {
	Minder    []string      // the program's own arguments that make it call Mind with those that follow
	Path      string        // of the file to execute
	Args      []string      // beginning with the name of the command
	Env       []string      // of the command
	Deadline  time.Time     // at which the group is killed, unless Trust moves it
	KillAfter time.Duration // from TERM to KILL
}

// Group is a command that runs. Its owner reads Events until it is closed, and then calls Close.
type Group struct {
	Events chan Event // closed when the minder is gone
	socket *os.File
	minder *os.Process
}

// firstFile is a number that no shell gives to a file: those that the program was given keep theirs.
const firstFile = 100

// Start starts the minder, which starts the command. Whether that works is the first event.
func Start(c Command) (*Group, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the own program: %w", err)
	}
	ends, err := socketpair()
	if err != nil {
		return nil, err
	}
	ours := os.NewFile(uintptr(ends[0]), "minder") // does not block, so that Close ends a read
	theirs := ends[1]
	args := append([]string{program}, c.Minder...)
	args = append(args, strconv.Itoa(theirs), c.KillAfter.String(), c.Path)
	minder, err := os.StartProcess(program, append(args, c.Args...), &os.ProcAttr{
		Env: c.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if closeErr := unix.Close(theirs); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	g := &Group{Events: make(chan Event, 16), socket: ours, minder: minder}
	go receive(ours, g.Events) // until Close has closed the socket
	g.Trust(c.Deadline)
	return g, nil
}

// socketpair makes the two ends: the second is left open in a process that is started.
func socketpair() (ends [2]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return ends, fmt.Errorf("make a socket: %w", err)
	}
	unix.CloseOnExec(pair[0])
	unix.CloseOnExec(pair[1])
	high, err := unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD, firstFile)
	_ = unix.Close(pair[1]) // the copy is what counts
	if err != nil {
		_ = unix.Close(pair[0])
		return ends, fmt.Errorf("make a socket: %w", err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return ends, errors.Join(fmt.Errorf("make a socket: %w", err), unix.Close(pair[0]), unix.Close(high))
	}
	return [2]int{pair[0], high}, nil
}

// Trust moves the deadline at which the group is killed.
func (g *Group) Trust(deadline time.Time) { g.tell(order{Trust: spanUntil(deadline)}) }

// Signal sends a signal to the group.
func (g *Group) Signal(s syscall.Signal) { g.tell(order{Signal: s}) }

// End sends TERM to the group, and KILL after KillAfter or at the deadline, whichever comes first.
func (g *Group) End() { g.tell(order{End: true}) }

// tell waits for a minder that does not read, because it was stopped, for no longer than a moment. An order that is cut
// off makes it kill the group.
func (g *Group) tell(o order) {
	_ = g.socket.SetWriteDeadline(time.Now().Add(time.Second)) // a socket has one
	send(g.socket, o)
}

// Kill kills the group without the minder's help, and the minder. It is for a minder that was stopped or killed. The
// command must have been Started, as pid.
func (g *Group) Kill(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL) // none may be left
	_ = g.minder.Kill()
}

// Close waits for the minder's end, and kills the group first if it has not ended.
func (g *Group) Close() error {
	err := g.socket.Close()
	for range g.Events { // what nobody waits for any more
	}
	_, waitErr := g.minder.Wait()
	return errors.Join(err, waitErr)
}
