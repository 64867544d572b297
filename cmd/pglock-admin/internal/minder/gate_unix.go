//go:build unix

package minder

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// gateway is the first argument of a gate. A gate is the process that becomes the command, as soon as the minder has
// told the program its number. So the program can kill the group of a command that runs, whatever happens to the
// minder.
const gateway = "gate"

// IsGate reports whether Mind, with these arguments, is a gate. What a gate catches, the command never hears of: so it
// catches no signal.
func IsGate(args []string) bool { return len(args) > 0 && args[0] == gateway }

// gate is the minder's end of the pipe that the gate waits at.
type gate struct{ *os.File }

// start starts the gate for a command: the path of its file, and its arguments. The arguments self make this program
// call Mind. The gate is the head of the command's process group.
func (m *minder) start(self, command []string) (gate, error) {
	program, name, err := ownProgram()
	if err != nil {
		return gate{}, err
	}
	wait, open, err := os.Pipe()
	if err != nil {
		return gate{}, err
	}
	defer wait.Close() // the gate has its own
	var files [2]int
	for i, f := range []*os.File{m.socket, wait} {
		if files[i], err = inheritable(int(f.Fd())); err != nil {
			return gate{}, err
		}
		defer unix.Close(files[i])
	}
	args := append([]string{name}, self...)
	args = append(args, gateway, strconv.Itoa(files[0]), strconv.Itoa(files[1]))
	m.pid, err = syscall.ForkExec(program, append(args, command...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	return gate{open}, err
}

// open lets the command begin. If somebody has killed the gate, mind learns that the command was killed.
func (g gate) open() {
	_, _ = g.Write([]byte{1})
	_ = g.Close()
}

// pass is the gate: it becomes the command when the minder opens it, and ends if the minder is gone.
func pass(args []string) error {
	report, err := inherited(args[0])
	if err != nil {
		return err
	}
	wait, err := inherited(args[1])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // dieWithParent is about this thread, which becomes the command
	dieWithParent()
	if _, err := wait.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("the minder has ended: %w", err)
	}
	err = syscall.Exec(args[2], args[3:], os.Environ())
	send(report, Event{Kind: Failed, Err: number(err)})
	return nil // the program says it
}

// firstFile is a number that no shell gives to a file. So the files that the program inherited keep their numbers.
const firstFile = 100

// inheritable makes a copy of a file that the next process has open too.
func inheritable(file int) (int, error) {
	high, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD, firstFile)
	if err != nil {
		return 0, fmt.Errorf("copy file %d: %w", file, err)
	}
	return high, nil
}

// inherited is a file that this process was started with, and that the command does not get.
func inherited(number string) (*os.File, error) {
	file, err := strconv.Atoi(number)
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(file)
	if f := os.NewFile(uintptr(file), "file "+number); f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("file %d is not open", file)
}

// number is why the system refused something, for a message.
func number(err error) syscall.Errno {
	if reason, is := errors.AsType[syscall.Errno](err); is {
		return reason
	}
	return syscall.EINVAL
}
