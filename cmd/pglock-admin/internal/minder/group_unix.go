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

// Command is what a minder runs. It inherits standard input, output and error, and the other open files of the program.
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

// Start starts the minder, which starts the command. The first event says whether the command started.
func Start(c Command) (*Group, error) {
	ends, err := socketpair()
	if err != nil {
		return nil, err
	}
	ours := os.NewFile(uintptr(ends[0]), "minder") // does not block, so that Close ends a read
	minder, err := c.start(ends[1])
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	g := &Group{Events: make(chan Event, 16), socket: ours, minder: minder}
	go receive(ours, g.Events) // until Close has closed the socket
	g.Trust(c.Deadline)
	return g, nil
}

// start starts the minder with its end of the socket, and closes that here.
func (c Command) start(socket int) (*os.Process, error) {
	defer unix.Close(socket)
	program, name, err := ownProgram()
	if err != nil {
		return nil, fmt.Errorf("find the own program: %w", err)
	}
	args := append([]string{name}, c.Minder...)
	args = append(args, strconv.Itoa(socket), c.KillAfter.String(), c.Path)
	return os.StartProcess(program, append(args, c.Args...), &os.ProcAttr{
		Env: c.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
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
	high, err := inheritable(pair[1])
	_ = unix.Close(pair[1]) // the copy is what counts
	if err != nil {
		_ = unix.Close(pair[0])
		return ends, err
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

// tell sends an order. If the minder is stopped and does not read, tell gives up after a second. The minder kills the
// group when it reads an order that was cut off.
func (g *Group) tell(o order) {
	_ = g.socket.SetWriteDeadline(time.Now().Add(time.Second)) // a socket has one
	send(g.socket, o)
}

// Kill kills the group and the minder, without the minder's help. Use it if the minder was stopped or killed. pid is
// that of the event Started. Before this event pid is 0 and Kill kills the minder alone: the command has not begun.
func (g *Group) Kill(pid int) {
	if pid != 0 { // 0 would be the caller's own group
		_ = syscall.Kill(-pid, syscall.SIGKILL) // none may be left
	}
	_ = g.minder.Kill()
}

// Gone reports whether the group of a command has ended after Kill.
func Gone(pid int) bool { return errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) || isDead(pid) }

// Close kills the group if it has not ended, and waits until the minder ends.
func (g *Group) Close() error {
	err := g.socket.Close()
	for range g.Events { // nobody waits for these any more
	}
	_, waitErr := g.minder.Wait()
	return errors.Join(err, waitErr)
}
