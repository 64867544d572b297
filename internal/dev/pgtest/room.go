package pgtest

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Most tests wait, so many run at once. But where several of them compute at once, or another package is being
// compiled, all of them are late together, and a test of a time limit fails for its neighbours. So a test begins only
// when the machine has room: when few tasks want a processor. Tests begin one after the other, each when the work of
// the last one shows. On a machine that others keep busy, tests begin nevertheless.
const (
	roomyTasks  = 2 // that run or want to, for each processor
	roomLooks   = 4 // of which the mean counts: one look alone sees little
	roomPause   = 15 * time.Millisecond
	roomTest    = time.Minute      // the most that one test waits
	roomPackage = 15 * time.Minute // the most that a package waits in all
)

// A room is where tests begin. The zero value is of no use; see newRoom.
type room struct {
	door  chan struct{}
	spent time.Duration // waiting for room; for whoever has the door
	wants func() int    // tasks that run or want to
}

func newRoom(wants func() int) *room { return &room{door: make(chan struct{}, 1), wants: wants} }

// enter returns when the machine has room, or the patience or ctx has ended, and lets nobody else enter before leave.
func (r *room) enter(ctx context.Context) (leave func()) {
	r.door <- struct{}{}
	began := time.Now()
	most := min(roomTest, roomPackage-r.spent)
	for ctx.Err() == nil && time.Since(began) < most && r.crowded() {
	}
	r.spent += time.Since(began)
	return func() { <-r.door }
}

// crowded takes a moment, unless a first look sees an idle processor.
func (r *room) crowded() bool {
	sum := 0
	for i := range roomLooks {
		n := r.wants()
		if i == 0 && n <= runtime.NumCPU() {
			return false
		}
		sum += n
		time.Sleep(roomPause)
	}
	return sum > roomLooks*roomyTasks*runtime.NumCPU()
}

// runnable is the number of tasks of the whole machine that run or want to; 0 where nobody can tell.
func runnable() int {
	text, err := os.ReadFile("/proc/loadavg") // "0.20 0.18 0.12 1/80 11206"
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 4 {
		return 0
	}
	running, _, _ := strings.Cut(fields[3], "/")
	n, _ := strconv.Atoi(running)
	return n
}
