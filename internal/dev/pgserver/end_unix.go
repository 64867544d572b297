//go:build unix

package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// patience is how long a postmaster may take to obey a signal, before it is killed.
	patience = 5 * time.Second
	// dying is how long processes that were killed may take to be gone: twenty seconds were seen on a busy machine.
	dying = time.Minute
)

// PID is the process of the latest postmaster; 0 for a server that was not started here.
func (p *process) PID() int {
	if pm := p.latest.Load(); pm != nil {
		return pm.pid
	}
	return 0
}

// DataDir is the server's data folder; empty for a server that was not started here.
func (p *process) DataDir() string { return p.data }

// LogFile is the server's log; empty for a server that was not started here.
func (p *process) LogFile() string { return p.log }

// Stop ends the server, closing its connections, and removes its folder. A second call does nothing, and so does any
// call for a server that was not started here.
func (p *process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over != nil {
		return nil
	}
	p.over = ErrStopped
	var err error
	if pm := p.latest.Load(); pm != nil {
		err = p.end(pm, syscall.SIGINT)
	}
	// There is nothing left to remove, unless somebody ended the minder.
	return errors.Join(err, p.minder.finish(), os.RemoveAll(p.folder))
}

// Kill ends the server as a crash would: SIGKILL for the postmaster and for all its children, which are gone when it
// returns. The folder stays, for Restart or Stop. The error is ErrNotOurs or ErrStopped if there is nothing to kill.
func (p *process) Kill() error { return p.alter(func() error { return p.kill(p.latest.Load()) }) }

// Restart starts the server again, in the same folder and on the same port: at once after Kill, else after a fast
// stop. ctx governs the start. The error is ErrNotOurs or ErrStopped if there is nothing to restart.
func (p *process) Restart(ctx context.Context) error {
	return p.alter(func() error {
		if err := p.end(p.latest.Load(), syscall.SIGINT); err != nil {
			return err
		}
		return p.startPostmaster(ctx)
	})
}

func (p *process) alter(do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over != nil {
		return p.over
	}
	return do()
}

// end asks the postmaster to end in the given way, then forces it, and returns when it has ended.
func (p *process) end(pm *postmaster, signal syscall.Signal) error {
	if pm.ended(0) {
		return nil
	}
	// It may have ended just now; done tells.
	_ = syscall.Kill(pm.pid, signal)
	_ = syscall.Kill(pm.pid, syscall.SIGCONT)
	if pm.ended(patience) {
		return nil
	}
	return p.kill(pm)
}

// kill stops the postmaster before it looks for the children, so that no more can come. A signal takes a moment to
// stop a process, and the start of a child that is under way is finished in that moment.
func (p *process) kill(pm *postmaster) error {
	if pm.ended(0) {
		return nil
	}
	_ = syscall.Kill(pm.pid, syscall.SIGSTOP)
	for deadline := time.Now().Add(patience); !isStopped(pm.pid) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	children, err := ChildrenOf(pm.pid)
	for _, pid := range append(children, pm.pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // checked below
	}
	if !pm.ended(dying) {
		return fmt.Errorf("pgserver: process %d is still there %v after SIGKILL", pm.pid, dying)
	}
	for deadline := time.Now().Add(dying); err == nil && len(children) > 0; {
		time.Sleep(pollEvery)
		var running map[int]int
		if running, err = parents(); time.Now().After(deadline) {
			return fmt.Errorf("pgserver: processes %v are still there %v after SIGKILL", children, dying)
		}
		children = slices.DeleteFunc(children, func(pid int) bool { _, is := running[pid]; return !is })
	}
	return err
}

// ChildrenOf are the running children of a process: the backends and helpers of a postmaster.
func ChildrenOf(pid int) (children []int, err error) {
	all, err := parents()
	for child, parent := range all {
		if parent == pid {
			children = append(children, child)
		}
	}
	return children, err
}

// isStopped says whether a process stands still, or has ended.
func isStopped(pid int) bool {
	all, _ := states(strconv.Itoa(pid)) // ps fails for a process that has ended
	found, is := all[pid]
	return !is || found.state == 'T' || found.state == 'Z'
}

// parents returns the parent of every process except zombies, which have ended and only wait for their parents to
// notice.
func parents() (map[int]int, error) {
	all, err := states("")
	running := make(map[int]int, len(all))
	for pid, s := range all {
		if s.state != 'Z' {
			running[pid] = s.parent
		}
	}
	return running, err
}

type state struct {
	state  byte
	parent int
}

// states reads what a process does, or every one: of "". It reads /proc if there is one, else it asks ps.
func states(pid string) (map[int]state, error) {
	var lines []string // pid, state, parent
	files, which := "/proc/[0-9]*/stat", []string{"-A"}
	if pid != "" {
		files, which = "/proc/"+pid+"/stat", []string{"-p", pid}
	}
	stats, _ := filepath.Glob(files)
	for _, file := range stats {
		stat, _ := os.ReadFile(file) // it may have ended since
		// "pid (name) state parent …", where the name may hold anything.
		lines = append(lines, filepath.Base(filepath.Dir(file))+" "+string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	}
	if len(stats) == 0 {
		out, err := exec.Command("ps", append(which, "-o", "pid=,stat=,ppid=")...).Output()
		if err != nil {
			return nil, fmt.Errorf("pgserver: ps: %w", err)
		}
		lines = strings.Split(string(out), "\n")
	}
	all := make(map[int]state)
	for _, line := range lines {
		if fields := strings.Fields(line); len(fields) >= 3 {
			pid, _ := strconv.Atoi(fields[0])
			parent, _ := strconv.Atoi(fields[2])
			all[pid] = state{fields[1][0], parent}
		}
	}
	return all, nil
}
