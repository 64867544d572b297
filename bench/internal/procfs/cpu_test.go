package procfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestStatIsReadBehindAnyProgramName(t *testing.T) {
	line := "42 (a) b) (c) S 7 42 42 0 -1 4194560 1 2 3 4 250 50 1000 500 20 0 1 0 100 0 0\n"
	got := must.Get(parseStat(line))(t)
	if want := (process{parent: 7, cpu: 3 * time.Second, reaped: 15 * time.Second}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "42 (x) S 7", "42 (x) S x 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestBusyIsAllButIdle(t *testing.T) {
	got, err := parseBusy("cpu  100 10 50 9999 8888 1 2 3 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	if want := 1660 * time.Millisecond; err != nil || got != want {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	if _, err := BusyCPU(); err != nil {
		t.Error(err)
	}
}

func TestTreeHasDescendantsOfAllGenerationsAndNobodyElse(t *testing.T) {
	all := map[int]process{
		1:  {parent: 0, cpu: 1000 * time.Second},
		10: {parent: 1, cpu: 1 * time.Second, reaped: 2 * time.Second},
		11: {parent: 10, cpu: 4 * time.Second},
		12: {parent: 11, cpu: 8 * time.Second, reaped: 16 * time.Second},
		20: {parent: 1, cpu: 500 * time.Second},
	}
	if got, want := sum(all, treeOf(all, 10)), 31*time.Second; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestReadingIsRefusedWhenAChildWasWaitedForMeanwhile(t *testing.T) {
	proc := t.TempDir()
	write := func(pid, children int) {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		must.Do(t, os.MkdirAll(dir, 0o700))
		line := fmt.Sprintf("%d (x) S 1 1 1 0 -1 0 1 2 3 4 10 0 %d 0 20 0\n", pid, children)
		must.Do(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(line), 0o600))
	}
	write(10, 5)
	write(11, 0)
	all := must.Get(processes(proc))(t)
	tree := []int{10, 11}
	if !nobodyReaped(proc, all, tree) {
		t.Error("nothing happened, and the reading was refused")
	}
	write(10, 35)
	if nobodyReaped(proc, all, tree) {
		t.Error("10 has waited for a child, and the reading was taken")
	}
	write(10, 5)
	must.Do(t, os.RemoveAll(filepath.Join(proc, "11")))
	if nobodyReaped(proc, all, tree) {
		t.Error("11 is gone, and the reading was taken")
	}
}

func TestWorkOfAChildCountsWhileItRunsAndAfterItWasWaitedFor(t *testing.T) {
	before := must.Get(TreeCPU(os.Getpid()))(t)
	cmd := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; read -r x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, cmd.Start())
	const work = 20 * time.Millisecond // the loop takes several times as long
	deadline := time.Now().Add(20 * time.Second)
	var child, during time.Duration
	for child < work {
		if child, err = TreeCPU(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the child has used %v only", child)
		}
	}
	if during, err = TreeCPU(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if during-before < work {
		t.Errorf("while the child ran: %v more, want %v at least", during-before, work)
	}
	must.Do(t, in.Close())
	_ = cmd.Wait() // read fails at the end of its input
	after := must.Get(TreeCPU(os.Getpid()))(t)
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if after-before < used-2*tick {
		t.Errorf("after the child was waited for: %v more, and it used %v", after-before, used)
	}
	if _, err := TreeCPU(cmd.Process.Pid); err == nil {
		t.Error("a process that is gone was read")
	}
}
