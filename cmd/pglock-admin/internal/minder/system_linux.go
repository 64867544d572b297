package minder

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill this thread, and the program that it becomes, when somebody kills the minder; but
// not what that program has started. (The kernel sends the signal when the thread that started this process ends. Go
// ends a thread only if a locked goroutine on it ends, and the minder has none.)
func dieWithParent() { _ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) }

// adoptOrphans makes orphaned processes children of the minder, which waits for them. In a container there may be
// nobody else who waits, and a process that nobody waits for stays in its group.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // without it, init adopts them
}

// ownProgram is the file of this program, and the name to start it under. Another may have taken the file's place while
// run waited for its lock, as in an upgrade, and would not understand what this one tells it.
func ownProgram() (file, name string, err error) {
	name, err = os.Executable()
	return "/proc/self/exe", name, err
}

// showName shows the program's name in a list of processes, and not that of the link in /proc.
func showName() {
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0) // it is only shown
}

// isDead reports whether all that is left of a group that was killed are processes that have ended, for which nobody
// has waited. Their parents may lie outside the group, and never wait.
func isDead(group int) (dead bool) {
	if _, err := os.ReadFile("/proc/1/stat"); err != nil { // processes of others are hidden
		return false
	}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) { // it has gone just now
			continue
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // before it is a name, of anything
		const state, pgrp, threads = 0, 2, 17
		if err != nil || len(fields) <= threads {
			return false
		}
		if fields[pgrp] != strconv.Itoa(group) {
			continue
		}
		// A process of several threads is Z as soon as the first of them has ended.
		if fields[state] != "Z" && fields[state] != "X" || fields[threads] != "0" && fields[threads] != "1" {
			return false
		}
		dead = true
	}
	return dead
}
