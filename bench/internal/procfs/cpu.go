// Package procfs reads Linux's data about processes, connections and the machine.
package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of the times in /proc/PID/stat, which is the same on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// process is one line of the process table.
type process struct {
	parent int
	cpu    time.Duration // its own, with threads that have ended
	reaped time.Duration // of its children that it has waited for, and of theirs
}

// TreeCPU is the processor time of a process and all of its descendants, including those that have ended and were
// waited for. It never decreases while the process lives.
func TreeCPU(pid int) (time.Duration, error) {
	const readings = 20
	for n := 1; ; n++ {
		all, err := processes("/proc")
		if err != nil {
			return 0, err
		}
		if _, ok := all[pid]; !ok {
			return 0, fmt.Errorf("process %d is not there", pid)
		}
		// A child that was waited for between the readings of its parent and of itself is in neither: read again.
		if tree := treeOf(all, pid); n == readings || nobodyReaped("/proc", all, tree) {
			return sum(all, tree), nil
		}
	}
}

// treeOf is a process and all of its descendants.
func treeOf(all map[int]process, root int) []int {
	children := make(map[int][]int)
	for pid, p := range all {
		children[p.parent] = append(children[p.parent], pid)
	}
	tree := []int{root}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree
}

func sum(all map[int]process, tree []int) (sum time.Duration) {
	for _, pid := range tree {
		sum += all[pid].cpu + all[pid].reaped
	}
	return sum
}

// nobodyReaped reports whether every process still exists and has waited for no child since it was read.
func nobodyReaped(proc string, all map[int]process, tree []int) bool {
	for _, pid := range tree {
		stat, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
		if err != nil {
			return false
		}
		if now, err := parseStat(string(stat)); err != nil || now.reaped != all[pid].reaped {
			return false
		}
	}
	return true
}

func processes(proc string) (map[int]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	all := make(map[int]process, len(entries))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if errors.Is(err, fs.ErrNotExist) || err != nil && strings.Contains(err.Error(), "no such process") {
			continue // it has ended in this moment
		}
		if err != nil {
			return nil, err
		}
		p, err := parseStat(string(stat))
		if err != nil {
			return nil, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		p.cpu = max(p.cpu, running(filepath.Join(proc, e.Name())))
		all[pid] = p
	}
	return all, nil
}

// parseStat reads the line of one process. Its second field, the program's name, may hold blanks and brackets.
func parseStat(line string) (process, error) {
	at := strings.LastIndexByte(line, ')')
	if at < 0 {
		return process{}, fmt.Errorf("%q has no name in brackets", line)
	}
	fields := strings.Fields(line[at+1:]) // from the third field on, the state
	if len(fields) < 15 {
		return process{}, fmt.Errorf("%q has too few fields", line)
	}
	var figures [5]int64
	for i, n := range []int{1, 11, 12, 13, 14} { // parent, user, system, and those of children
		var err error
		if figures[i], err = strconv.ParseInt(fields[n], 10, 64); err != nil {
			return process{}, err
		}
	}
	return process{
		parent: int(figures[0]),
		cpu:    time.Duration(figures[1]+figures[2]) * tick,
		reaped: time.Duration(figures[3]+figures[4]) * tick,
	}, nil
}

// running is the time of the live threads, to the nanosecond; 0 if the system does not count it. The ticks alone
// would hide the work of a server that does little.
func running(dir string) (sum time.Duration) {
	files, _ := filepath.Glob(filepath.Join(dir, "task", "*", "schedstat")) // the pattern is well formed
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended in this moment
		}
		first, _, _ := strings.Cut(string(content), " ")
		if n, err := strconv.ParseInt(first, 10, 64); err == nil {
			sum += time.Duration(n)
		}
	}
	return sum
}
