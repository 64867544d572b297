//go:build unix

package pgserver

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A task is a line of the process table.
type task struct {
	pid, parent int
	zombie      bool
}

// childrenOf gives the processes whose parent is pid, but no zombies.
func childrenOf(pid int) ([]int, error) {
	tasks, err := tasks()
	if err != nil {
		return nil, err
	}
	var children []int
	for _, t := range tasks {
		if t.parent == pid && !t.zombie {
			children = append(children, t.pid)
		}
	}
	return children, nil
}

// awaitGone waits until the processes have ended. A zombie has: what is left is
// for its parent to take note.
func awaitGone(pids []int) error {
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		tasks, err := tasks()
		if err != nil {
			return fmt.Errorf("pgserver: %w", err)
		}
		running := make(map[int]bool)
		for _, t := range tasks {
			running[t.pid] = !t.zombie
		}
		left := 0
		for _, pid := range pids {
			if running[pid] {
				left++
			}
		}
		switch {
		case left == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("pgserver: %d of the server's processes are still there %v after SIGKILL", left, patience)
		}
		<-tick.C
	}
}

// tasks reads the process table: from /proc where there is one, else from ps.
func tasks() ([]task, error) {
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		return procTasks()
	}
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, fmt.Errorf("ps: %w", err)
	}
	var all []task
	for line := range strings.Lines(string(out)) {
		if t, ok := parseTask(strings.Fields(line)); ok {
			all = append(all, t)
		}
	}
	return all, nil
}

func procTasks() ([]task, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []task
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended since
		}
		// "pid (name) state parent …", where the name may hold anything.
		_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			continue
		}
		if t, ok := parseTask([]string{e.Name(), fields[1], fields[0]}); ok {
			all = append(all, t)
		}
	}
	return all, nil
}

// parseTask reads pid, parent and state.
func parseTask(fields []string) (task, bool) {
	if len(fields) != 3 {
		return task{}, false
	}
	pid, err1 := strconv.Atoi(fields[0])
	parent, err2 := strconv.Atoi(fields[1])
	return task{pid: pid, parent: parent, zombie: strings.HasPrefix(fields[2], "Z")}, err1 == nil && err2 == nil
}
