//go:build unix

package history

import (
	"slices"
	"sync"
	"time"
)

// Tampered names the fault that makes a guard useless for a while.
const Tampered = "tamper"

// Everybody is whom a fault of the server concerns.
const Everybody = -1

// Fault is one fault that was injected.
type Fault struct {
	Name   string
	Worker int // or Everybody
	Begin  Time
	End    Time // 0 while it lasts
	Note   string
	Quiet  bool     // it keeps nobody from the server: a break, a prune, cancelled calls
	Delays Duration // it may delay the end of a lease, or a grant, for so long
	Moves  bool     // another server takes over, and one that may only be read may answer for a while
	Full   bool     // nobody can connect anew: who has lost connections to another fault stays without them
}

// Faults are all faults so far. They are safe for concurrent use.
type Faults struct {
	mu   sync.Mutex
	all  []Fault
	full []int // which of them are Full: few, and looked through for each of the others
}

// Began notes the beginning of a fault; what it gives ends it.
func (f *Faults) Began(fault Fault) (ended func()) {
	fault.Begin = Now()
	f.mu.Lock()
	n := len(f.all)
	f.add(fault)
	f.mu.Unlock()
	return func() {
		now := Now()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all[n].End = now
	}
}

// Was notes a fault that is over.
func (f *Faults) Was(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(fault)
}

func (f *Faults) add(fault Fault) {
	if fault.Full {
		f.full = append(f.full, len(f.all))
	}
	f.all = append(f.all, fault)
}

// Disturbed says whether, at any moment between the two, the worker could not be expected to reach the server and to
// run, or had just begun to again: settling is for how long after a fault that is so.
func (f *Faults) Disturbed(worker int, from, to Time, settling time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.all, func(x Fault) bool {
		return !x.Quiet && (x.Worker == Everybody || x.Worker == worker) && x.Begin <= to &&
			f.until(x, settling) >= from
	})
}

// until is when everybody has settled after a fault. Where the server was full then, nobody could connect before that
// was over.
func (f *Faults) until(x Fault, settling time.Duration) Time {
	until := x.over().Add(settling)
	for _, n := range f.full {
		if y := f.all[n]; y.Begin <= until && y.over() >= x.Begin {
			until = max(until, y.over().Add(settling))
		}
	}
	return until
}

// over is the end of the fault, far away while it lasts.
func (x Fault) over() Time {
	if x.End == 0 {
		return never
	}
	return x.End
}

const never = Time(1 << 62)

// Count tells how often each kind was injected.
func (f *Faults) Count() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := make(map[string]int)
	for _, x := range f.all {
		count[x.Name]++
	}
	return count
}

// Delay is for how long faults of that time may have delayed the end of a lease, or a grant.
func (f *Faults) Delay(from, to Time) (most time.Duration) {
	for _, x := range f.Between(from, to) {
		most = max(most, x.Delays)
	}
	return most
}

// Between are the faults that were active in the time.
func (f *Faults) Between(from, to Time) []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	var active []Fault
	for _, x := range f.all {
		if x.Begin <= to && (x.End == 0 || x.End >= from) {
			active = append(active, x)
		}
	}
	return active
}
